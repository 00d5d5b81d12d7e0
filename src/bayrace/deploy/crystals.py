"""What crystals and molecules are like by a calculator: lattice, stiffness, vibrations, barriers.

Each function takes a structure and an ASE calculator and returns numbers, so that a member of a
posterior, its mean and the oracle itself are asked in the same way. `bayrace.deploy.members` makes
mean ± σ of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms, units
from ase.eos import EquationOfState
from ase.filters import FrechetCellFilter
from ase.mep import NEB
from ase.optimize import BFGS, FIRE
from numpy.typing import NDArray

Array = NDArray[np.float64]

VOIGT = ("xx", "yy", "zz", "yz", "xz", "xy")
_VOIGT_PAIRS = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


@dataclass(frozen=True)
class Relaxation:
    """When a relaxation is over."""

    max_force: float = 1e-3  # eV/Å, of any atom, and of the cell's enthalpy by strain per atom
    steps: int = 500
    cell: bool = False  # whether the cell relaxes too


class NotRelaxedError(ValueError):
    """Forces that did not fall below the limit."""


def relax(atoms: Atoms, calculator: Any, settings: Relaxation) -> Atoms:
    """A copy at the nearest minimum of the energy, with the calculator attached."""
    moved: Any = atoms.copy()  # type: ignore[no-untyped-call]
    moved.calc = calculator
    make: Any = BFGS
    target = FrechetCellFilter(moved) if settings.cell else moved  # type: ignore[no-untyped-call]
    with make(target, logfile=None) as optimiser:
        if not optimiser.run(fmax=settings.max_force, steps=settings.steps):
            left = float(np.linalg.norm(target.get_forces(), axis=1).max())
            raise NotRelaxedError(
                f"{moved.get_chemical_formula()}: forces of {left:.3g} eV/Å are left after "
                f"{settings.steps} steps; give more steps, or allow larger forces"
            )
    result: Atoms = moved
    return result


def equation_of_state(atoms: Atoms, calculator: Any, *, width: float = 0.02) -> Array:
    """Volume (Å³/atom), energy (eV/atom), bulk modulus (GPa) of a relaxed crystal, as (3,).

    Birch–Murnaghan through seven volumes; lengths change by up to `width`.
    """
    volumes, energies = [], []
    for stretch in np.linspace(1 - width, 1 + width, 7):
        scaled: Any = atoms.copy()  # type: ignore[no-untyped-call]
        scaled.set_cell(atoms.cell.array * stretch, scale_atoms=True)
        scaled.calc = calculator
        volumes.append(scaled.get_volume() / len(atoms))
        energies.append(scaled.get_potential_energy() / len(atoms))
    curve: Any = EquationOfState(volumes, energies, eos="birchmurnaghan")  # type: ignore[no-untyped-call]
    volume, energy, modulus = curve.fit(warn=False)
    return np.array([volume, energy, modulus / units.GPa])


def elastic_constants(
    atoms: Atoms, calculator: Any, *, strain: float = 0.005, relaxation: Relaxation | None = None
) -> Array:
    """C (6, 6), GPa, Voigt order, of a relaxed crystal; atoms relax in every strained cell.

    Central differences of the stress, made symmetric.
    """
    matrix = np.empty((6, 6))
    settings = relaxation or Relaxation()
    for column, (row, other) in enumerate(_VOIGT_PAIRS):
        stresses = []
        for size in (-strain, strain):
            tensor = np.zeros((3, 3))
            tensor[row, other] += size / 2  # shear in Voigt notation is twice the tensor's
            tensor[other, row] += size / 2
            strained: Any = atoms.copy()  # type: ignore[no-untyped-call]
            strained.set_cell(atoms.cell.array @ (np.eye(3) + tensor), scale_atoms=True)
            stresses.append(relax(strained, calculator, settings).get_stress())  # type: ignore[no-untyped-call]
        matrix[:, column] = (stresses[1] - stresses[0]) / (2 * strain) / units.GPa
    return (matrix + matrix.T) / 2


def phonon_frequencies(
    atoms: Atoms,
    calculator: Any,
    *,
    supercell: tuple[int, int, int],
    displacement: float = 0.01,
) -> tuple[Array, Array]:
    """Points q (Q, 3) that fit the supercell, and frequencies (Q, 3 n) in THz; imaginary are < 0.

    Of each pair q and −q there is one.
    """
    try:
        from phonopy import Phonopy
        from phonopy.structure.atoms import PhonopyAtoms
    except ImportError as error:
        raise ValueError("phonons need phonopy: pip install 'bayrace[engines]'") from error
    fractions: Any = atoms.get_scaled_positions()  # type: ignore[no-untyped-call]
    cell = PhonopyAtoms(numbers=atoms.numbers, cell=atoms.cell.array, scaled_positions=fractions)
    phonon: Any = Phonopy(cell, supercell_matrix=np.diag(supercell), primitive_matrix=np.eye(3))
    phonon.generate_displacements(distance=displacement)
    forces = []
    for each in phonon.supercells_with_displacements:
        moved = Atoms(
            each.symbols, cell=each.cell, scaled_positions=each.scaled_positions, pbc=True
        )
        moved.calc = calculator
        forces.append(moved.get_forces())  # type: ignore[no-untyped-call]
    phonon.forces = np.array(forces)
    phonon.produce_force_constants()
    phonon.symmetrize_force_constants()
    points = commensurate(supercell)
    phonon.run_qpoints(points)
    frequencies: Array = np.asarray(phonon.qpoints.frequencies)
    return points, frequencies


def commensurate(supercell: tuple[int, int, int]) -> Array:
    """Points (Q, 3) in units of the reciprocal cell, one of q and −q."""
    points: list[tuple[float, ...]] = []
    for place in itertools.product(*(range(count) for count in supercell)):
        opposite = tuple(-k % n for k, n in zip(place, supercell, strict=True))
        if place <= opposite:
            points.append(tuple(k / n for k, n in zip(place, supercell, strict=True)))
    return np.array(points)


def vibrations(atoms: Atoms, calculator: Any, *, displacement: float = 0.005) -> Array:
    """Harmonic frequencies (3 n,) of a relaxed molecule in 1/cm, ascending; imaginary are < 0.

    Central differences of forces; the six or five lowest are rotation and translation.
    """
    count = len(atoms)
    hessian = np.empty((3 * count, 3 * count))
    moved: Any = atoms.copy()  # type: ignore[no-untyped-call]
    moved.calc = calculator
    for row in range(3 * count):
        pair = []
        for sign in (1, -1):
            moved.positions = atoms.positions
            moved.positions[row // 3, row % 3] += sign * displacement
            pair.append(moved.get_forces().ravel())
        hessian[row] = -(pair[0] - pair[1]) / (2 * displacement)
    weight = np.repeat(atoms.get_masses() ** -0.5, 3)
    squares = np.linalg.eigvalsh((hessian + hessian.T) / 2 * weight * weight[:, None])
    # √(eV / (Å² u)) is units of angular frequency here, as ASE's time is Å √(u / eV)
    quanta = np.sign(squares) * np.sqrt(abs(squares)) * units._hbar * units.J * units.s
    result: Array = quanta / units.invcm
    return result


def minimum_energy_path(
    ends: tuple[Atoms, Atoms], calculator: Any, *, images: int, relaxation: Relaxation
) -> list[Atoms]:
    """`images` structures from one end to the other, ends included, that climb over the barrier.

    The ends are taken as they are: relax them first.
    """
    path: list[Any] = [ends[0].copy() for _ in range(images - 1)]  # type: ignore[no-untyped-call]
    path.append(ends[1].copy())  # type: ignore[no-untyped-call]
    for image in path:
        image.calc = calculator
    band: Any = NEB(path, climb=True, method="improvedtangent", allow_shared_calculator=True)  # type: ignore[no-untyped-call]
    band.interpolate("idpp", mic=bool(ends[0].pbc.any()))
    make: Any = FIRE
    with make(band, logfile=None) as optimiser:
        if not optimiser.run(fmax=relaxation.max_force, steps=relaxation.steps):
            raise NotRelaxedError(
                f"the path is not relaxed after {relaxation.steps} steps; give more steps, or "
                "allow larger forces"
            )
    return path
