"""What looks wrong in data that could be trained on: units, signs, outliers, repetitions.

Nothing here is certain, so nothing is refused unless `strict` asks for it; and a doubt is voiced
only where the data leave little room for another reading. Files are judged one by one, since units
belong to files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bayrace.core.units import BOHR, HARTREE, KCAL_PER_MOL
from bayrace.data.bonds import Stiffness, nearest_relative, pair_name, stiffnesses
from bayrace.data.frame import ISOLATED_TYPE, DataError, Frame, symbols_of
from bayrace.data.reference import composition, reference_energy
from bayrace.data.summary import Duplicate, Outlier, duplicates, outliers
from bayrace.data.work import Work, energy_and_work

logger = logging.getLogger(__name__)

KJ_PER_MOL = KCAL_PER_MOL / 4.184  # eV
SPRINGS = (12.0, 100.0)  # eV/Å²; bonds of H to C, N and O have 25 to 50
BINDING = (-12.0, 5.0)  # eV per atom beyond free atoms; tungsten has −9, N2 −5
HYDROGEN = (-40.0, 20.0)  # eV; a free atom has −13.6
# Energies of hot structures reach 20 deviations, and forces of compressed bonds 40 times the usual.
OUTLYING = {"energy": 30.0, "force": 50.0}
SMALL = 0.1  # eV/atom; energies that differ by less are no mistakes of units or files
_LOOKED_AT = 150  # frames of a file whose bonds are measured
_LISTED = 8  # frames that a message names
_FEW = 5
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


def doubts(splits: Mapping[str, Sequence[Frame]]) -> list[Doubt]:
    """Everything that looks wrong in the frames of these sets."""
    units = unit_doubts(splits)
    strange = {doubt.where for doubt in units}
    outlying = [
        each
        for each in outliers(_alike(splits))
        if each.score > OUTLYING[each.quantity]
        and (abs(each.value) > SMALL if each.quantity == "energy" else _source(each) not in strange)
    ]
    return [*units, *_outlying(outlying), *_repeated(duplicates(splits))]


def unit_doubts(splits: Mapping[str, Sequence[Frame]]) -> list[Doubt]:
    """What looks wrong in whole files: units, signs, and atoms that are not marked as isolated."""
    files: dict[str, list[Frame]] = {}
    for frames in splits.values():
        for frame in frames:
            files.setdefault(frame.source, []).append(frame)
    single = [
        frame
        for frames in files.values()
        for frame in frames
        if len(frame.numbers) == 1 and not frame.pbc.any() and frame.config_type != ISOLATED_TYPE
    ]
    found = [doubt for source, each in files.items() for doubt in _units(source, _several(each))]
    return [*found, *_unmarked(single)]


def reference_doubts(
    frames: Sequence[Frame], references: Mapping[int, float], *, given: bool
) -> list[Doubt]:
    """What is odd in reference energies, eV, that were given or are those of isolated atoms."""
    labelled = [frame for frame in frames if frame.energy is not None]
    if not labelled:
        return []
    values = ", ".join(f"{symbols_of([z])} {energy:.6g}" for z, energy in references.items())
    hydrogen = references.get(1)
    if not given:
        odd = hydrogen is not None and not HYDROGEN[0] < hydrogen < HYDROGEN[1]
        if not odd or not determined(labelled, tuple(references)):
            return []
        what = f"the fitted reference energies ({values} eV) are not those of atoms; H has −13.6 eV"
        remedy = "check the units of the energies, or add frames of isolated atoms"
        return [Doubt("reference energies", what, remedy)]
    bound = np.median(
        [
            ((frame.energy or 0.0) - reference_energy(frame.numbers, references))
            / len(frame.numbers)
            for frame in labelled
        ]
    )
    if BINDING[0] < bound < BINDING[1]:
        return []
    what = (
        f"the structures have {bound:.4g} eV per atom beyond the reference energies ({values} eV), "
        f"but atoms bind by 0 to {-BINDING[0]:g} eV"
    )
    remedy = "give both in eV and from the same method, or leave the references out"
    return [Doubt("reference energies", what, remedy)]


def determined(frames: Sequence[Frame], elements: tuple[int, ...]) -> bool:
    """Whether the compositions of the frames tell the energies of the elements apart."""
    return bool(np.linalg.matrix_rank(composition(frames, elements)) == len(elements))


def voice(found: Sequence[Doubt], *, strict: bool) -> None:
    """Warn of each; with `strict`, refuse the data instead."""
    if strict and found:
        listed = "\n".join(f"  {doubt}" for doubt in found)
        raise DataError(
            f"the data look wrong in {len(found)} way{'s' if len(found) > 1 else ''}:\n{listed}\n"
            "correct them, or train without --strict"
        )
    for doubt in found:
        logger.warning("%s", doubt)


def _alike(splits: Mapping[str, Sequence[Frame]]) -> dict[str, list[Frame]]:
    """Frames of each set and config_type, where they are enough to tell what is usual."""
    found: dict[str, list[Frame]] = {}
    for name, frames in splits.items():
        for frame in _several(frames):
            found.setdefault(f"{name}, {frame.config_type}", []).append(frame)
    return {name: frames for name, frames in found.items() if len(frames) >= _FEW}


def _source(outlier: Outlier) -> str:
    return outlier.frame.rpartition(", ")[0]


def _several(frames: Sequence[Frame]) -> list[Frame]:
    """Frames that are no single atoms."""
    return [frame for frame in frames if len(frame.numbers) > 1 or frame.pbc.any()]


def _units(source: str, frames: Sequence[Frame]) -> Iterator[Doubt]:
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


def _outlying(found: Sequence[Outlier]) -> list[Doubt]:
    energies = [each for each in found if each.quantity == "energy"]
    forces = [each for each in found if each.quantity == "force"]
    doubts = []
    if energies:
        worst = max(energies, key=lambda each: abs(each.value))
        what = f"{worst.remark}, by {worst.value:.4g} eV/atom"
        if len(energies) > 1:
            what = f"energies far from all others; worst {worst.frame}: {what}"
        remedy = "check these calculations and units, or remove the frames"
        doubts.append(Doubt(_frames([each.frame for each in energies]), what, remedy))
    if forces:
        worst = max(forces, key=lambda each: each.value)
        what = f"forces up to {worst.value:.4g} eV/Å ({worst.frame}, {worst.remark})"
        remedy = "check these calculations, or remove the frames"
        doubts.append(Doubt(_frames([each.frame for each in forces]), what, remedy))
    return doubts


def _repeated(found: Sequence[Duplicate]) -> list[Doubt]:
    doubts = []
    across = [each for each in found if each.across]
    within = [each for each in found if not each.across]
    if across:
        what = (
            f"{len(across)} geometries are in two sets; the first is {across[0].first} "
            f"({across[0].first_split}) again ({across[0].second_split})"
        )
        remedy = "remove them from one set, or errors will look smaller than they are"
        doubts.append(Doubt(_frames([each.second for each in across]), what, remedy))
    if within:
        what = f"{len(within)} geometries are repeated; the first is {within[0].first} again"
        remedy = "remove the copies, which weigh twice and may be split from each other"
        doubts.append(Doubt(_frames([each.second for each in within]), what, remedy))
    return doubts


def _unmarked(frames: Sequence[Frame]) -> list[Doubt]:
    if not frames:
        return []
    remedy = f"mark them with config_type={ISOLATED_TYPE}, and their energies become references"
    return [Doubt(_frames([frame.label for frame in frames]), "single atoms in no cell", remedy)]


def _frames(labels: Sequence[str]) -> str:
    """Frames by file: "a.xyz, frames 3, 7 and 12 more"."""
    files: dict[str, list[str]] = {}
    for label in dict.fromkeys(labels):
        source, _, number = label.rpartition(", frame ")
        files.setdefault(source, []).append(number)
    parts = []
    for source, numbers in files.items():
        more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
        word = "frames" if len(numbers) > 1 else "frame"
        parts.append(f"{source}, {word} {', '.join(numbers[:_LISTED])}{more}")
    return "; ".join(parts)
