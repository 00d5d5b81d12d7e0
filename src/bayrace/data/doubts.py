"""What looks wrong in data that could be trained on: units, signs, outliers, repetitions.

Nothing here is certain, so nothing is refused unless `strict` asks for it; and a doubt is voiced
only where the data leave little room for another reading. Files are judged one by one, since units
belong to files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from bayrace.data.frame import ISOLATED_TYPE, DataError, Frame, elements_of, symbols_of
from bayrace.data.hints import label_hint
from bayrace.data.reference import composition, element_energies, reference_energy
from bayrace.data.succession import succession_doubts
from bayrace.data.summary import Duplicate, Outlier, duplicates, outliers, several
from bayrace.data.unit_doubts import Doubt, file_doubts

logger = logging.getLogger(__name__)

BINDING = (-12.0, 5.0)  # eV per atom beyond free atoms; tungsten has −9, N2 −5
HYDROGEN = (-40.0, 20.0)  # eV; a free atom has −13.6
# Energies of hot structures reach 20 deviations, and forces of compressed bonds 40 times the usual.
OUTLYING = {"energy": 30.0, "force": 50.0}
SCATTERED = 50.0  # eV/atom, half of the frames; bonds have 12 at most
SMALL = 0.1  # eV/atom; energies that differ by less are no mistakes of units or files
_LISTED = 8  # frames that a message names
_FEW = 5


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
    follow = succession_doubts(splits.get("train", ()), splits.get("valid", ()))
    return [*units, *_outlying(outlying), *_repeated(duplicates(splits)), *follow]


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
    found = [
        doubt for source, each in files.items() for doubt in file_doubts(source, several(each))
    ]
    every = [frame for frames in files.values() for frame in frames]
    empty = [doubt for source, each in files.items() for doubt in _constant(source, each)]
    wide = [doubt for source, each in files.items() for doubt in _scattered(source, each)]
    return [*found, *empty, *wide, *_unmarked(single), *_unlabelled(every)]


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
        for frame in frames:
            found.setdefault(f"{name}, {frame.config_type}", []).append(frame)
    return {name: frames for name, frames in found.items() if len(frames) >= _FEW}


def _source(outlier: Outlier) -> str:
    return outlier.frame.rpartition(", ")[0]


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
    return [Doubt(_frames([frame.origin for frame in frames]), "single atoms in no cell", remedy)]


def _constant(source: str, frames: Sequence[Frame]) -> list[Doubt]:
    """Labels that are all the same though the structures are not, as programs write for missing."""
    joined = several(frames)
    positions = {frame.positions.tobytes() for frame in joined}
    if len(positions) < _FEW:
        return []
    found = []
    free = [frame for frame in joined if len(frame.numbers) > 1]  # alone in a cell, none is pulled
    forces = [frame.forces for frame in free if frame.forces is not None]
    if forces and not any(each.any() for each in forces):
        found.append("all forces are 0")
    energies = [frame.energy for frame in joined if frame.energy is not None]
    if len(energies) >= _FEW and len(set(energies)) == 1:
        found.append(f"all energies are {energies[0]:g} eV")
    remedy = "check what wrote the file, and the keys of the labels"
    return [Doubt(source, what, remedy) for what in found]


def _scattered(source: str, frames: Sequence[Frame]) -> list[Doubt]:
    """Energies that differ by more than chemistry does, whatever atoms cost."""
    known = [frame for frame in several(frames) if frame.energy is not None]
    if len(known) < _FEW:
        return []
    energies, elements = np.array([frame.energy for frame in known]), elements_of(known)
    cost = composition(known, elements) @ element_energies(known, energies, elements=elements)
    atoms = np.array([len(frame.numbers) for frame in known])
    usual = float(np.median(np.abs(energies - cost) / atoms))
    if usual < SCATTERED:
        return []
    what = f"energies of the same atoms differ by {usual:.3g} eV per atom"
    return [Doubt(source, what, "check their unit, and whether all are of the same method")]


def _unlabelled(frames: Sequence[Frame]) -> list[Doubt]:
    """Frames without labels among others that have some."""
    bare = [frame for frame in frames if not frame.labelled]
    if not bare or len(bare) == len(frames):
        return []
    what = "neither energy nor forces, so nothing is learnt from them or compared with them"
    keys = f"their keys, which must be the same in all files{label_hint(bare)}"
    remedy = f"name {keys}, or label them"
    return [Doubt(_frames([frame.origin for frame in bare]), what, remedy)]


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
