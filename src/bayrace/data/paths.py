"""Files by their names: globs, and selections such as file.xyz@:100."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ase.utils import string2index

from bayrace.data.frame import DataError

Paths = str | Path | Sequence[str | Path]


def expand(paths: Paths) -> Iterator[tuple[Path, slice | int | None]]:
    """Files and their selections; a name that exists is taken literally, whatever its letters."""
    for item in [paths] if isinstance(paths, str | Path) else paths:
        text = str(item)
        name, selection = _split_selection(
            text if Path(text).exists() else os.path.expanduser(text)  # noqa: PTH111 - no errors
        )
        if Path(name).exists():
            yield Path(name), selection
        elif re.search(r"[*?\[]", name):
            matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - absolute patterns
            if not matches:
                raise DataError(f"{name}: no file matches this pattern; correct it or the folder")
            yield from ((Path(match), selection) for match in matches)
        else:
            raise DataError(f"{name}: no such file; the current folder is {Path.cwd()}")


def _split_selection(name: str) -> tuple[str, slice | int | None]:
    """Split ASE's `file.xyz@10:20` into the file and its selection."""
    if Path(name).exists() or "@" not in Path(name).name:
        return name, None
    stem, _, text = name.rpartition("@")
    try:
        selection = string2index(text)
    except ValueError:
        selection = text
    if not isinstance(selection, slice | int):
        raise DataError(f"{name}: cannot select frames by {text!r}; write {stem}@:100 or {stem}@5")
    return stem, selection


def places_of(path: Path, selection: slice | int | None, total: int) -> range | list[int]:
    """Which of `total` structures a selection takes."""
    if selection is None:
        return range(total)
    if isinstance(selection, slice):
        places = range(*selection.indices(total))
        if total and not places:
            raise DataError(f"{path}: the selection takes none of its {total} frames; widen it")
        return places
    if not -total <= selection < total:
        raise DataError(f"{path}: no frame {selection}; it has {total} frames")
    return [selection % total]
