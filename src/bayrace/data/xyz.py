"""Structure of (extended) XYZ files, checked before ASE parses them.

ASE stops silently at a blank line and reports a short frame at the wrong place; both lose data.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import IO

from ase.io.formats import open_with_compression

from bayrace.data.frame import DataError


def check_xyz(path: Path) -> int:
    """Return the number of frames; refuse a truncated, malformed or empty file."""
    frames = 0
    try:
        with open_with_compression(str(path), "r") as file:
            while _skip_frame(file, path, frames):
                frames += 1
    except (EOFError, UnicodeDecodeError, OSError) as error:
        raise DataError(
            f"{path}, frame {frames}: cannot be read ({error}); the file is damaged or truncated: "
            f"fetch it again"
        ) from error
    if frames == 0:
        raise DataError(f"{path}: no frames in the file; write it again or leave it out")
    return frames


def _skip_frame(file: IO[str], path: Path, frame: int) -> bool:
    """Move past one frame; False at the end of the file."""
    header = file.readline()
    if not header.strip():
        _refuse_rest(file, path, frame)
        return False
    if header.lstrip().startswith("VEC"):  # cell vectors of the frame before
        return _skip_frame(file, path, frame)
    try:
        atoms = int(header)
    except ValueError:
        raise DataError(
            f"{path}, frame {frame}: expected the number of atoms, found {header.strip()[:40]!r}; "
            f"this frame or the one before has a wrong number of lines: repair or remove it"
        ) from None
    body = list(islice(file, atoms + 1))
    rows = sum(1 for line in body[1:] if line.strip())
    if len(body) < atoms + 1 or rows < atoms:
        raise DataError(
            f"{path}, frame {frame}: announces {atoms} atoms but has {rows}; the file is "
            f"truncated: restore it, or remove this frame"
        )
    return True


def _refuse_rest(file: IO[str], path: Path, frame: int) -> None:
    """Nothing but white space may follow a blank line where a frame should begin."""
    for line in file:
        if line.strip():
            raise DataError(
                f"{path}, frame {frame}: starts with a blank line but the file goes on with "
                f"{line.strip()[:40]!r}; remove the blank lines"
            )
