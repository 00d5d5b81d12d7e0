"""Writing structures; files appear under their names only when they are complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ase.io
from ase import Atoms

from bayrace.core.files import whole_file
from bayrace.data.frame import Frame, frame_to_atoms


def write_frames(path: Path, frames: Sequence[Frame]) -> None:
    """Write geometries and labels to an ASE trajectory (.traj), which keeps all digits.

    Reading them again gives the same frames, bit for bit; labels have ASE's own names.
    """
    _write(path, [frame_to_atoms(frame) for frame in frames], "traj")


def write_extxyz(path: Path, structures: Sequence[Atoms]) -> None:
    """Write structures with everything that is known of them to extended XYZ."""
    _write(path, structures, "extxyz")


def _write(path: Path, structures: Sequence[Atoms], form: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        ase.io.write(part, structures, format=form)
