"""Structure of (extended) XYZ files, checked before ASE parses them.

ASE stops silently at a blank line and reports a short frame at the wrong place; both lose data. It
also takes minutes over a comment of megabytes, and gigabytes for columns that are only announced.
"""

from __future__ import annotations

import re
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
    except UnicodeDecodeError as error:
        byte = error.object[error.start : error.start + 1]
        raise DataError(
            f"{path}, frame {frames}: {byte!r} is not UTF-8; "
            "convert the file, such as with `iconv -f latin1 -t utf-8`, or fetch it again if it is "
            "damaged"
        ) from error
    except (EOFError, OSError) as error:
        raise DataError(
            f"{path}, frame {frames}: cannot be read ({error}); the file is damaged or truncated: "
            f"fetch it again"
        ) from error
    if frames == 0:
        raise DataError(f"{path}: no frames in the file; write it again or leave it out")
    return frames


_LONGEST = 200_000  # characters of a line; ASE's parser of comments is slow
_COLUMNS = re.compile(r"""properties["']?\s*=\s*["'{]?([^"'}\s]+)""", re.IGNORECASE)


def _skip_frame(file: IO[str], path: Path, frame: int) -> bool:
    """Move past one frame; False at the end of the file."""
    header = _line(file, path, frame)
    while header.lstrip().startswith("VEC"):  # cell vectors of the frame before
        header = _line(file, path, frame)
    if not header.strip():
        _refuse_rest(file, path, frame)
        return False
    atoms = _count(header, path, frame)
    comment, rows, first = _line(file, path, frame), 0, ""
    while rows < atoms and (line := _line(file, path, frame)).strip():
        rows, first = rows + 1, first or line
    if rows < atoms:
        raise DataError(
            f"{path}, frame {frame}: announces {atoms} atoms but has {rows}; the file is "
            f"truncated: restore it, or remove this frame"
        )
    _check_columns(comment, first, path, frame)
    return True


def _line(file: IO[str], path: Path, frame: int) -> str:
    line = file.readline(_LONGEST)
    if len(line) == _LONGEST:
        raise DataError(
            f"{path}, frame {frame}: a line has more than {_LONGEST} characters, such as "
            f"{line[:40]!r}...; shorten it, or remove the frame"
        )
    return line


def _count(header: str, path: Path, frame: int) -> int:
    """The number of atoms in the first line of a frame."""
    if header.startswith("\ufeff"):
        raise DataError(
            f"{path}: begins with a byte order mark, as some editors write it; save the file as "
            "UTF-8 without one"
        )
    try:
        atoms = int(header)
    except ValueError:
        raise DataError(
            f"{path}, frame {frame}: expected the number of atoms, found {header.strip()[:40]!r}; "
            f"this frame or the one before has a wrong number of lines: repair or remove it"
        ) from None
    if atoms < 0:
        raise DataError(
            f"{path}, frame {frame}: announces {atoms} atoms; correct the number, or remove it"
        )
    return atoms


def _check_columns(comment: str, first: str, path: Path, frame: int) -> None:
    """Refuse more columns than the first atom has: ASE reserves memory for each of them."""
    found = _COLUMNS.search(comment)
    if found is None or not first:
        return
    widths = [int(width) for width in found[1].split(":")[2::3] if re.fullmatch(r"\d{1,18}", width)]
    present = len(first.split())
    if sum(widths) > present:
        raise DataError(
            f"{path}, frame {frame}: Properties announces {sum(widths)} columns but its first atom "
            f"has {present}; correct Properties, or remove the frame"
        )


def _refuse_rest(file: IO[str], path: Path, frame: int) -> None:
    """Nothing but white space may follow a blank line where a frame should begin."""
    for line in file:
        if line.strip():
            raise DataError(
                f"{path}, frame {frame}: starts with a blank line but the file goes on with "
                f"{line.strip()[:40]!r}; remove the blank lines"
            )
