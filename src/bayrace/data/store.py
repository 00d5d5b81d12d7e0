"""Structures in files that are read one at a time, anywhere in them: .aselmdb and ASE's .db."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bayrace.data.aselmdb import SUFFIX, open_aselmdb
from bayrace.data.frame import DataError, Frame, LabelKeys
from bayrace.data.paths import expand, places_of
from bayrace.data.stored import Stored, stored

SUFFIXES = (SUFFIX, ".db")


class Rows(Protocol):
    """A file of structures."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Stored:
        """The structure at a place, from 0."""
        ...


class AseDatabase:
    """A database of ASE in an SQLite file."""

    def __init__(self, path: Path) -> None:
        from ase.db import connect

        self.path = path
        try:
            rows: Any = connect(str(path))  # type: ignore[no-untyped-call]
            self._rows: Any = rows.__enter__()  # one connection for all rows
            found = self._rows.connection.execute("SELECT id FROM systems ORDER BY id")
            self._ids = np.array([number for (number,) in found], dtype=np.int64)
        except Exception as error:  # of SQLite, and whatever ASE raises
            raise DataError(f"{path}: cannot be read as a database of ASE ({error})") from error

    def __len__(self) -> int:
        return len(self._ids)

    def row(self, index: int) -> Stored:
        """The structure at a place, from 0."""
        found = self._rows.get(id=int(self._ids[index]))
        content = {"key_value_pairs": found.key_value_pairs, "data": dict(found.data)}
        own = {key: found[key] for key in found if key not in content and key != "constraints"}
        return stored({**own, **content}, place=f"{self.path}, frame {index}")


@dataclass(frozen=True, eq=False)
class Part:
    """Some structures of one file."""

    path: Path
    rows: Rows
    places: range | list[int]


class Store:
    """Structures of several files, one after another."""

    def __init__(
        self, paths: Sequence[str], *, keys: LabelKeys, config_weights: Mapping[str, float]
    ) -> None:
        self.paths, self.keys, self.config_weights = list(paths), keys, dict(config_weights)
        self.parts: list[Part] = []
        for path, selection in expand(self.paths):
            rows = open_rows(path)
            self.parts.append(Part(path, rows, places_of(path, selection, len(rows))))
        self._ends = np.cumsum([len(part.places) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.parts else 0

    def origin(self, place: int) -> str:
        """Where a structure is, as messages show it."""
        part, index = self._find(place)
        return f"{part.path}, frame {index}"

    def frame(self, place: int) -> Frame:
        """The structure at a place among all, with its labels."""
        part, index = self._find(place)
        frame = part.rows.row(index).frame(self.keys, source=str(part.path), index=index)
        weight = float(self.config_weights.get(frame.config_type, 1.0))
        return frame if weight == 1.0 else replace(frame, weight=weight)

    def _find(self, place: int) -> tuple[Part, int]:
        number = int(np.searchsorted(self._ends, place, side="right"))
        part = self.parts[number]
        first = int(self._ends[number]) - len(part.places)
        return part, part.places[place - first]


def open_rows(path: Path) -> Rows:
    """A file whose structures can be read one at a time."""
    if path.suffix == SUFFIX:
        return open_aselmdb(path)
    if path.suffix == ".db":
        return AseDatabase(path)
    raise DataError(
        f"{path}: only {' and '.join(SUFFIXES)} files can stay on disk; "
        f"`bayrace convert {path} {path.with_suffix(SUFFIX)}` makes one"
    )
