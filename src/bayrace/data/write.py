"""Writing frames so that reading them again gives the same ones, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import ase.io

from bayrace.data.frame import Frame, frame_to_atoms


def write_frames(path: Path, frames: Sequence[Frame]) -> None:
    """Write geometries and labels to an ASE trajectory (.traj), which keeps all digits.

    The file appears under its name only when it is complete; labels have ASE's own names.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        ase.io.write(part, [frame_to_atoms(frame) for frame in frames], format="traj")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
