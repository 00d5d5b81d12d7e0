"""Properties of structures as mean ± σ: what each member of a posterior says, and how far apart.

A lattice constant, a frequency or a barrier is no sum of predictions, so no σ of forces carries
over to it. Every member relaxes the structure and computes the property by itself. σ is their
standard deviation (M − 1), multiplied by the factor that the potential's calibration found for
forces, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from bayrace.deploy.ase import Calculator
from bayrace.deploy.crystals import (
    VOIGT,
    Relaxation,
    commensurate,
    elastic_constants,
    equation_of_state,
    minimum_energy_path,
    phonon_frequencies,
    relax,
    vibrations,
)
from bayrace.deploy.members import measure, members_of, spread_factor
from bayrace.potential.potential import Potential

Array = NDArray[np.float64]

KINDS = ("eos", "elastic", "phonons", "vibrations")


@dataclass(frozen=True)
class Property:
    """One number with its uncertainty."""

    name: str
    unit: str
    mean: float
    std: float


@dataclass(frozen=True)
class PropertySettings:
    """What is computed, and how."""

    kinds: tuple[str, ...] = ("eos", "elastic")
    supercell: tuple[int, int, int] = (2, 2, 2)  # of phonons
    relaxation: Relaxation = field(default_factory=Relaxation)
    samples: int | None = None  # weight samples; None: all of an ensemble, else 8

    def __post_init__(self) -> None:
        """Refuse what is unknown."""
        for kind in self.kinds:
            if kind not in KINDS:
                raise ValueError(f"{kind!r} is no property; choose of {', '.join(KINDS)}")
        if min(self.supercell) < 1:
            raise ValueError(f"supercell={self.supercell}: give three counts of 1 or more")


def properties(potential: Potential, atoms: Atoms, settings: PropertySettings) -> list[Property]:
    """Each kind of property that is asked for, number by number."""
    _refuse(atoms, settings.kinds)
    names = [name for kind in settings.kinds for name in _names(kind, atoms, settings)]
    members = members_of(potential, settings.samples)
    found = measure(
        members, lambda member: _values(member, atoms, settings), factor=spread_factor(potential)
    )
    return [
        Property(name, unit, float(mean), float(std))
        for (name, unit), mean, std in zip(names, found.mean, found.std, strict=True)
    ]


def values_by(calculator: Any, atoms: Atoms, settings: PropertySettings) -> Array:
    """The numbers of `properties` by any ASE calculator, such as that of the oracle."""
    periodic = bool(atoms.pbc.all())
    still = Relaxation(settings.relaxation.max_force, settings.relaxation.steps, cell=periodic)
    relaxed = relax(atoms, calculator, still)
    by_kind: dict[str, Callable[[], Array]] = {
        "eos": lambda: equation_of_state(relaxed, calculator),
        "elastic": lambda: elastic_constants(relaxed, calculator, relaxation=settings.relaxation)[
            np.triu_indices(6)
        ],
        "phonons": lambda: phonon_frequencies(relaxed, calculator, supercell=settings.supercell)[
            1
        ].ravel(),
        "vibrations": lambda: vibrations(relaxed, calculator)[_rigid(atoms) :],
    }
    return np.concatenate([by_kind[kind]() for kind in settings.kinds])


@dataclass(frozen=True, eq=False)
class Path:
    """A minimum energy path with σ of every energy, relative to the first image."""

    images: list[Atoms]  # by the mean potential
    energies: Array  # (K,) eV, mean over members
    stds: Array  # (K,) eV
    barrier: Property


def path(
    potential: Potential,
    ends: tuple[Atoms, Atoms],
    *,
    images: int = 7,
    relaxation: Relaxation,
) -> Path:
    """Relax both ends and the path between them; members tell energies along the same images."""
    _refuse_different(*ends)
    calculator = Calculator(potential, uncertainty=False)
    first, last = (relax(end, calculator, relaxation) for end in ends)
    band = minimum_energy_path((first, last), calculator, images=images, relaxation=relaxation)

    def heights(member: Potential) -> Array:
        energies = member.predict(band).energy.mean.numpy(force=True)
        return np.append(energies - energies[0], energies.max() - energies[0])

    found = measure(members_of(potential), heights, factor=spread_factor(potential))
    barrier = Property("barrier", "eV", float(found.mean[-1]), float(found.std[-1]))
    return Path(band, found.mean[:-1], found.std[:-1], barrier)


def _values(member: Potential, atoms: Atoms, settings: PropertySettings) -> Array:
    # displacements are small: differences of float32 forces would be mostly rounding
    calculator = Calculator(member, uncertainty=False, dtype="float64")
    return values_by(calculator, atoms, settings)


def _names(kind: str, atoms: Atoms, settings: PropertySettings) -> Sequence[tuple[str, str]]:
    """Name and unit of every number of a kind, in the order of `values_by`."""
    if kind == "eos":
        return [("volume", "Å³/atom"), ("energy", "eV/atom"), ("bulk modulus", "GPa")]
    if kind == "elastic":
        rows = zip(*np.triu_indices(6), strict=True)
        return [(f"C{i + 1}{j + 1} ({VOIGT[i]} {VOIGT[j]})", "GPa") for i, j in rows]
    if kind == "vibrations":
        return [(f"mode {n + 1}", "1/cm") for n in range(3 * len(atoms) - _rigid(atoms))]
    return [
        (f"q ({' '.join(f'{x:.3g}' for x in q)}) band {band + 1}", "THz")
        for q in commensurate(settings.supercell)
        for band in range(3 * len(atoms))
    ]


def _rigid(atoms: Atoms) -> int:
    """How many of the modes are translation and rotation."""
    if len(atoms) == 1:
        return 3
    away = atoms.positions[1:] - atoms.positions[0]
    return 5 if np.linalg.matrix_rank(away, tol=1e-3) < 2 else 6


def _refuse(atoms: Atoms, kinds: Sequence[str]) -> None:
    crystal = bool(atoms.pbc.all())
    for kind in kinds:
        if (kind == "vibrations") == crystal:
            there = "a molecule" if crystal else "a cell periodic in all three directions"
            raise ValueError(
                f"{kind} needs {there}, but pbc={atoms.pbc.tolist()}; choose other properties "
                "with --what, or correct pbc"
            )


def _refuse_different(first: Atoms, last: Atoms) -> None:
    """Refuse ends that no band joins."""
    if first.numbers.tolist() != last.numbers.tolist():
        raise ValueError(
            f"the ends are {first.symbols} and {last.symbols}: a path needs the same atoms in the "
            "same order"
        )
    if first.pbc.tolist() != last.pbc.tolist():
        raise ValueError(
            f"one end has pbc={first.pbc.tolist()}, the other {last.pbc.tolist()}; give both the "
            "same"
        )
