"""Units and signs of a file that look wrong, by what physics leaves no room for.

Bonds of hydrogen have known stiffness and length, forces are the slopes of energies, and totals of
all electrons are known for light atoms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bayrace.core.units import BOHR, GPA, HARTREE, KCAL_PER_MOL
from bayrace.data.bonds import Stiffness, nearest_relative, pair_name, stiffnesses
from bayrace.data.frame import Frame
from bayrace.data.work import Work, energy_and_work

KJ_PER_MOL = KCAL_PER_MOL / 4.184  # eV
SPRINGS = (12.0, 100.0)  # eV/Å²; bonds of H to C, N and O have 25 to 50
_LOOKED_AT = 150  # frames of a file whose bonds are measured
_FEW = 5
_STRESS_WORK = 10.0  # eV, stress times volume of an atom
# Hartree, all electrons, non-relativistic; with pseudopotentials, in eV or not, they are far away.
_ATOMS = dict(
    enumerate(
        (-0.5, -2.90, -7.48, -14.67, -24.65, -37.84, -54.59, -75.07, -99.73, -128.94), start=1
    )
)
_ENERGY_UNITS = {"hartree": 1 / HARTREE, "kcal/mol": 1 / KCAL_PER_MOL, "kJ/mol": 1 / KJ_PER_MOL}
_FORCE_UNITS = {
    "kcal/mol/Å": 1 / KCAL_PER_MOL,
    "kJ/mol/Å": 1 / KJ_PER_MOL,
    "hartree/bohr": BOHR / HARTREE,
    "hartree/Å": 1 / HARTREE,
}


@dataclass(frozen=True)
class Doubt:
    """One thing that looks wrong."""

    where: str  # file, and frames where it is about some of them
    what: str  # what was found
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"


def file_doubts(source: str, frames: Sequence[Frame]) -> Iterator[Doubt]:
    """Lengths first: with wrong ones, nothing else can be told."""
    some = frames[:: -(-len(frames) // _LOOKED_AT)] if frames else []
    wrong = _lengths(source, some)
    if wrong is not None:
        yield wrong
        return
    springs, work = stiffnesses(some), energy_and_work(frames)
    sign = _sign(source, springs, work)
    if sign is not None:
        yield sign
    force = _force_unit(springs)
    if force is not None:
        unit, spring = force
        yield Doubt(
            source,
            f"the bonds of {pair_name(spring.elements)} answer with "
            f"{abs(spring.value):.3g} per Å, where 25 to 50 eV/Å² are usual",
            f"forces look like {unit}; convert them to eV/Å",
        )
    yield from _energy_unit(source, frames, work, force is not None, bool(_hydrogen(springs)))
    stress = _stress_unit(source, frames)
    if stress is not None:
        yield stress


def _lengths(source: str, frames: Sequence[Frame]) -> Doubt | None:
    """Every bond too long or too short by the factor of Å and bohr."""
    nearest = nearest_relative(frames)
    scan = bool(frames) and np.median([len(frame.numbers) for frame in frames]) < 3  # of a dimer
    if scan or len(nearest) < _FEW:
        return None
    middle = float(np.median(nearest))
    shown = f"nearest atoms are {middle:.2f} times the sum of their covalent radii apart"
    if nearest.min() > 1.4 and 1.6 < middle < 2.3:
        return Doubt(source, shown, "lengths look like bohr; convert them to Å")
    if middle < 0.6:
        return Doubt(source, shown, "lengths are too short: were they converted to Å twice?")
    return None


def _sign(source: str, springs: Sequence[Stiffness], work: Work | None) -> Doubt | None:
    """Stretched bonds pull, and energy falls along the forces; one that is clear is enough."""
    clear = [each for each in springs if abs(each.correlation) > 0.4]
    pushing = bool(clear) and all(each.value < 0 for each in clear)
    pulling = any(each.value > 0 for each in clear)
    rising = work is not None and work.correlation < -0.85
    falling = work is not None and work.correlation > 0.7
    signs = []
    if pushing and not falling:
        names = ", ".join(pair_name(each.elements) for each in clear)
        signs.append(f"stretched bonds ({names}) push")
    if rising and not pulling:
        signs.append("the energy rises along the forces")
    if not signs:
        return None
    return Doubt(
        source, " and ".join(signs), "forces look like gradients; change their sign (F = −dE/dx)"
    )


def _hydrogen(springs: Sequence[Stiffness]) -> list[Stiffness]:
    """Clear bonds of hydrogen to C, N and O, which are alike in all of chemistry."""
    return [
        each
        for each in springs
        if each.elements[0] == 1 and each.elements[1] in (6, 7, 8) and abs(each.correlation) > 0.7
    ]


def _force_unit(springs: Sequence[Stiffness]) -> tuple[str, Stiffness] | None:
    """The unit that would make the stiffness of all X-H bonds usual, if ours does not."""
    bonds = _hydrogen(springs)
    if not bonds or any(0.5 * SPRINGS[0] < abs(each.value) < 2 * SPRINGS[1] for each in bonds):
        return None
    fits = [
        unit
        for unit, factor in _FORCE_UNITS.items()
        if all(SPRINGS[0] < abs(each.value) / factor < SPRINGS[1] for each in bonds)
    ]
    most = max(bonds, key=lambda each: each.bonds)
    return (" or ".join(fits), most) if fits else ("another unit", most)


def _energy_unit(
    source: str, frames: Sequence[Frame], work: Work | None, wrong_forces: bool, known_forces: bool
) -> Iterator[Doubt]:
    """Energies beside the work of the forces where it is telling, else beside free atoms."""
    electrons = _electrons(frames)
    if electrons is not None:
        what = (
            f"the energies are {electrons[0]:.3f} times those of free atoms with all electrons, "
            f"if these are in {electrons[1]}"
        )
        if work is None or abs(work.correlation) < 0.7 or _matches(work, electrons[1]):
            yield Doubt(source, what, f"energies look like {electrons[1]}; convert them to eV")
            return
        if wrong_forces:
            yield Doubt(source, what, f"energies look like {electrons[1]}; convert them to eV")
            return
    if work is None or wrong_forces or abs(work.correlation) < 0.85:
        return
    limit = 1.7 if abs(work.correlation) > 0.98 else 2.5
    ratio = abs(work.ratio)
    if 1 / limit < ratio < limit:
        return
    yield Doubt(
        source,
        f"from frame to frame, the energy changes {ratio:.3g} times as much as the forces "
        f"{'do' if work.ratio > 0 else '(but for their sign) do'} work",
        _candidates(ratio, frames, known_forces),
    )


def _stress_unit(source: str, frames: Sequence[Frame]) -> Doubt | None:
    """Stress times the volume of an atom; 160 GPa on 10 Å³ are 10 eV."""
    known = [
        (float(np.abs(frame.stress).max()), abs(float(np.linalg.det(frame.cell))), frame.numbers)
        for frame in frames
        if frame.stress is not None
    ]
    if len(known) < _FEW:
        return None
    stress = float(np.median([largest for largest, _, _ in known]))
    product = float(np.median([each * volume / len(atoms) for each, volume, atoms in known]))
    if product < _STRESS_WORK:
        return None
    return Doubt(
        source,
        f"stresses of {stress:.3g} eV/Å³ are {stress / GPA:.3g} GPa, {product:.3g} eV for the "
        "volume of an atom",
        "they look like GPa or kbar; convert them to eV/Å³, or leave them out with loss.stress: 0",
    )


def _electrons(frames: Sequence[Frame]) -> tuple[float, str] | None:
    """Total energies over the sum of free atoms with all electrons, in a unit other than eV."""
    ratios = [
        frame.energy / sum(_ATOMS[int(number)] for number in frame.numbers)
        for frame in frames
        if frame.energy is not None
        and 2 < frame.numbers.max(initial=0) <= max(_ATOMS)
        and frame.numbers.min() > 0
    ]
    if len(ratios) < _FEW:
        return None
    for unit, factor in _ENERGY_UNITS.items():
        relative = np.array(ratios) / (factor * HARTREE)
        if ((relative > 0.98) & (relative < 1.04)).mean() > 0.9:
            return float(np.median(relative)), unit
    return None


def _matches(work: Work, unit: str) -> bool:
    """Whether the forces, taken as eV/Å, want the energies in this unit."""
    return 0.5 < abs(work.ratio) / _ENERGY_UNITS[unit] < 2.0


def _candidates(ratio: float, frames: Sequence[Frame], known_forces: bool) -> str:
    """Units that would explain the ratio of energy and work."""
    atoms = np.median([len(frame.numbers) for frame in frames])
    energies = {**_ENERGY_UNITS, "eV per atom": 1.0 / atoms}
    forces = {**_FORCE_UNITS, "eV/bohr": BOHR}
    names = [f"energies in {unit}" for unit, value in energies.items() if _near(ratio, value)]
    if not known_forces:
        names += [f"forces in {unit}" for unit, f in forces.items() if _near(ratio, 1.0 / f)]
    wanted = "convert energies to eV and forces to eV/Å"
    return f"this looks like {' or '.join(names)}; {wanted}" if names else wanted


def _near(ratio: float, expected: float) -> bool:
    return 0.75 < ratio / expected < 1.33
