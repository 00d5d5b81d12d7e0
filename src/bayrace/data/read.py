"""Reading labelled structures: extended XYZ, anything ASE reads, databases, rMD17 npz, QM9."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import ase.io
from ase import Atoms
from ase.io.formats import UnknownFileTypeError, filetype, ioformats

from bayrace.data.check import problems, refuse
from bayrace.data.frame import (
    DEFAULT_TYPE,
    DataError,
    Frame,
    LabelKeys,
    elements_of,
    frame_from_atoms,
    frame_to_atoms,
    isolated_energies,
    label_names,
    split_isolated,
)
from bayrace.data.npz import load_npz, read_npz
from bayrace.data.paths import Paths, expand, places_of
from bayrace.data.qm9 import is_qm9, is_table, read_qm9, read_table
from bayrace.data.store import SUFFIXES, open_rows
from bayrace.data.xyz import check_xyz

__all__ = [
    "DEFAULT_TYPE",
    "DataError",
    "Frame",
    "LabelKeys",
    "elements_of",
    "frame_from_atoms",
    "frame_to_atoms",
    "isolated_energies",
    "iterate_atoms",
    "read_frames",
    "split_isolated",
]


def read_frames(
    paths: Paths,
    *,
    keys: LabelKeys,
    config_weights: Mapping[str, float],
    require_labels: bool = True,
    check: bool = True,
) -> list[Frame]:
    """Read the frames of files, globs and `file.xyz@:100` selections, in that order.

    A frame weighs `config_weights[config_type]`, or 1. A configured label key that no frame has is
    refused unless `require_labels` is off (structures to predict). With `check`, unusable frames
    (nan, overlapping atoms, degenerate cells) are refused.
    """
    frames: list[Frame] = []
    present: set[str] = set()
    whole_files = 0
    for path, selection in expand(paths):
        source = _source(path, selection)
        if not isinstance(source, Iterator):
            frames += source
            continue
        whole_files += 1
        for index, atoms in source:
            present |= label_names(atoms)
            frames.append(frame_from_atoms(atoms, keys=keys, source=str(path), index=index))
    if require_labels and whole_files:
        _require_keys(paths, keys, present)
    weighted = [_weigh(frame, config_weights) for frame in frames]
    if check:
        refuse(problems(weighted, need_forces=False))
    return weighted


def iterate_atoms(paths: Paths) -> Iterator[tuple[str, int, Atoms]]:
    """Structures one at a time, as (file, number in it, atoms), whatever the size of the files."""
    for path, selection in expand(paths):
        source = _source(path, selection)
        if isinstance(source, Iterator):
            yield from ((str(path), index, atoms) for index, atoms in source)
        else:
            yield from ((str(path), frame.index, frame_to_atoms(frame)) for frame in source)


def _source(path: Path, selection: slice | int | None) -> list[Frame] | Iterator[tuple[int, Atoms]]:
    """Frames whose labels are read already, or atoms with their numbers in the file."""
    if path.suffix == ".npz":
        arrays = load_npz(path)
        if not is_table(arrays):
            found = read_npz(path, arrays)
            return [found[place] for place in places_of(path, selection, len(found))]
        return _chosen(path, list(read_table(path, arrays)), selection)
    if path.suffix in SUFFIXES:
        rows = open_rows(path)
        places = places_of(path, selection, len(rows))
        return ((place, rows.row(place).atoms()) for place in places)
    if is_qm9(path):
        return _chosen(path, list(read_qm9(path)), selection)
    return _read_ase(path, selection)


def _chosen(
    path: Path, molecules: list[Atoms], selection: slice | int | None
) -> Iterator[tuple[int, Atoms]]:
    return ((place, molecules[place]) for place in places_of(path, selection, len(molecules)))


def _weigh(frame: Frame, config_weights: Mapping[str, float]) -> Frame:
    weight = float(config_weights.get(frame.config_type, 1.0))
    return frame if weight == frame.weight else replace(frame, weight=weight)


def _require_keys(paths: Paths, keys: LabelKeys, present: set[str]) -> None:
    for key in keys.configured():
        if key not in present:
            shown = ", ".join(sorted(present)) or "none"
            raise DataError(
                f"{_shown(paths)}: no frame has the label {key!r}; present: {shown}; "
                f"set the key to one of these, or leave it out to use ASE's own names"
            )


def _shown(paths: Paths) -> str:
    return str(paths) if isinstance(paths, str | Path) else ", ".join(str(path) for path in paths)


def _read_ase(path: Path, selection: slice | int | None) -> Iterator[tuple[int, Atoms]]:
    """Yield frames with their number in the file; a negative selection needs the whole file."""
    kind = _file_type(path)
    if kind in {"xyz", "extxyz"}:
        frames = check_xyz(path)
        places: Iterable[int] = places_of(path, selection, frames)
        chosen = slice(None) if selection is None else selection
        yield from _iterate(path, kind, chosen, places)
        return
    everything = list(_iterate(path, kind, slice(None), range(sys.maxsize)))
    yield from (everything[place] for place in places_of(path, selection, len(everything)))


def _iterate(
    path: Path, kind: str, selection: slice | int, places: Iterable[int]
) -> Iterator[tuple[int, Atoms]]:
    images = ase.io.iread(str(path), index=selection, format=kind, do_not_split_by_at_sign=True)
    for place in places:
        try:
            atoms = next(images)
        except StopIteration:
            return
        except Exception as error:  # ASE's readers raise anything, from KeyError to their own
            raise DataError(
                f"{path}, frame {place}: cannot be read as {kind} ({error}); "
                f"the frame may be truncated or badly formatted: repair or remove it"
            ) from error
        yield place, atoms


def _file_type(path: Path) -> str:
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; write it again or leave it out")
    try:
        kind = str(filetype(str(path)))
    except UnknownFileTypeError:
        kind = path.suffix
    except (EOFError, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); it is damaged or truncated: fetch it again"
        ) from error
    if kind not in ioformats:
        raise DataError(
            f"{path}: ASE does not know the file type {kind!r}; convert it to extended XYZ"
        )
    return kind
