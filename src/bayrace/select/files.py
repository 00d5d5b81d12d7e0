"""Pools in files that need not fit into memory, and the chosen structures as extended XYZ."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms

from bayrace.data.check import check_frame
from bayrace.data.frame import ISOLATED_TYPE, Frame, LabelKeys, frame_from_atoms
from bayrace.data.read import iterate_atoms
from bayrace.select.select import Selection


@dataclass(frozen=True)
class PoolFiles:
    """Structures of some files, read anew each time they are asked for; no isolated atoms."""

    files: Sequence[str]
    keys: LabelKeys  # of labels, which need not be there

    def __iter__(self) -> Iterator[Frame]:
        for frame, _ in self.structures():
            yield frame

    def structures(self) -> Iterator[tuple[Frame, Atoms]]:
        """Each structure as we see it and as the file has it."""
        for source, index, atoms in iterate_atoms(list(self.files)):
            frame = frame_from_atoms(atoms, keys=self.keys, source=source, index=index)
            if frame.config_type != ISOLATED_TYPE:
                check_frame(frame)
                yield frame, atoms


def write_chosen(pool: PoolFiles, selection: Selection, target: Path) -> list[Frame]:
    """Write the chosen structures in the order of choice, and return them.

    What the input holds is kept. selection_rank counts from 1; selection_by and selection_score say
    for what it was chosen; selection_distance is that to the nearest known structure. The file
    appears under its name only when it is complete.
    """
    wanted = {int(place): rank for rank, place in enumerate(selection.indices)}
    found: dict[int, tuple[Frame, Atoms]] = {}
    for place, (frame, atoms) in enumerate(pool.structures()):
        if place in wanted:
            found[wanted[place]] = (frame, atoms)
    ordered = [found[rank] for rank in range(len(wanted))]
    for rank, (_, atoms) in enumerate(ordered):
        atoms.info["selection_rank"] = rank + 1
        atoms.info["selection_by"] = selection.criteria[rank]
        atoms.info["selection_score"] = float(selection.scores[rank])
        if np.isfinite(selection.distances[rank]):
            atoms.info["selection_distance"] = float(selection.distances[rank])
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        ase.io.write(part, [atoms for _, atoms in ordered], format="extxyz")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return [frame for frame, _ in ordered]
