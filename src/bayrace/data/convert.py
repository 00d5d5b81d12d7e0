"""Structures from files of one kind to a file of another, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.db import connect

from bayrace.core.files import whole_file
from bayrace.data.aselmdb import SUFFIX, write_aselmdb
from bayrace.data.frame import DataError
from bayrace.data.paths import Paths
from bayrace.data.read import iterate_atoms

_XYZ = (".xyz", ".extxyz")


def convert(
    sources: Paths, output: Path, *, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Write all structures of some files to `output`, in the format of its name; their number.

    Geometries, labels, info and arrays of atoms are kept.
    """
    structures = _counted((atoms for _, _, atoms in iterate_atoms(sources)), progress)
    if output.suffix == SUFFIX:
        return write_aselmdb(output, structures)
    if output.suffix == ".db":
        return _write_database(output, structures)
    if output.suffix not in _XYZ:
        known = ", ".join((SUFFIX, ".db", *_XYZ))
        raise DataError(f"{output}: cannot write {output.suffix or 'this'}; name it one of {known}")
    return _write_xyz(output, structures)


def _counted(structures: Iterable[Atoms], progress: Callable[[int], None]) -> Iterator[Atoms]:
    for number, atoms in enumerate(structures, start=1):
        yield atoms
        progress(number)


def _write_xyz(output: Path, structures: Iterable[Atoms]) -> int:
    count = 0
    with whole_file(output) as part:
        part.touch()
        for atoms in structures:
            ase.io.write(part, atoms, format="extxyz", append=True)
            count += 1
    return count


def _write_database(output: Path, structures: Iterable[Atoms]) -> int:
    count = 0
    with whole_file(output) as part, connect(str(part), type="db") as rows:  # type: ignore[no-untyped-call]
        for atoms in structures:
            values = {
                k: v.item() if isinstance(v, np.generic) else v for k, v in atoms.info.items()
            }
            values |= {k: v for k, v in atoms.arrays.items() if k not in ("numbers", "positions")}
            rows.write(atoms, data=values)  # ASE refuses many names and texts as pairs
            count += 1
    return count
