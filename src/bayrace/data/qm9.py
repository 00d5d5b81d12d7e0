"""QM9 (Ramakrishnan 2014) as published: files of a kind of XYZ, their archive, and npz tables.

A file of the archive dsgdb9nsd.xyz.tar.bz2 has the number of atoms; `gdb`, the molecule's number
and fifteen properties; atoms with a Mulliken charge each; then frequencies, SMILES and InChI, which
we pass over. Exponents may be written 1.2*^-5. Several such files may follow each other in one.
Properties go by the names of `NAMES`; energies are Hartree in the files and eV here.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from ase import Atoms

from bayrace.core.units import HARTREE
from bayrace.data.frame import DataError

NAMES = (
    *("A", "B", "C"),  # GHz
    *("mu", "alpha"),  # D, a0³
    *("homo", "lumo", "gap"),  # eV
    "r2",  # a0²
    *("zpve", "u0", "u298", "h298", "g298"),  # eV
    "cv",  # cal/mol/K
)
_HARTREE = frozenset({"homo", "lumo", "gap", "zpve", "u0", "u298", "h298", "g298"})
_TABLE = ("Z", "R", "props", "prop_names")
_ARCHIVES = (".tar", ".tar.bz2", ".tar.gz", ".tgz", ".tbz2")


def is_qm9(path: Path) -> bool:
    """Whether a file is in one of the published forms, by its name and its second line."""
    if path.name.endswith(_ARCHIVES):
        return True
    if path.suffix != ".xyz" or not path.is_file():
        return False
    with path.open("rb") as file:
        file.readline(100)
        comment = file.readline(400).decode("utf-8", errors="replace")
    return _is_comment(comment)


def read_qm9(path: Path) -> Iterator[Atoms]:
    """Molecules in the order of the file, or of the names in an archive, with their properties."""
    if not path.name.endswith(_ARCHIVES):
        with path.open(encoding="utf-8") as file:
            yield from _molecules(file, str(path))
        return
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.name.endswith(".xyz") else None
                if content is not None:
                    text = TextIOWrapper(content, encoding="utf-8")
                    yield from _molecules(text, f"{path}/{member.name}")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(
            f"{path}: not a readable archive ({error}); it may be truncated: fetch it again"
        ) from error


def read_table(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> Iterator[Atoms]:
    """Molecules of an npz: Z (S, n) padded with 0, R (S, n, 3) Å, props (S, P) and prop_names."""
    numbers, positions, values = (np.asarray(arrays[name]) for name in ("Z", "R", "props"))
    names = [str(name) for name in arrays["prop_names"]]
    count = len(numbers)
    shapes = (numbers.ndim, positions.shape, values.shape)
    if shapes != (2, (*numbers.shape, 3), (count, len(names))):
        raise DataError(
            f"{path}: Z has shape {numbers.shape}, R {positions.shape}, props {values.shape} for "
            f"{len(names)} prop_names; expected (S, n), (S, n, 3) and (S, {len(names)})"
        )
    identity = arrays.get("gdb_id")
    for place in range(count):
        present = numbers[place] > 0
        info = {name: float(value) for name, value in zip(names, values[place], strict=True)}
        if identity is not None:
            info["gdb_id"] = int(np.asarray(identity)[place])
        yield _molecule(numbers[place][present], positions[place][present], info)


def is_table(arrays: dict[str, npt.NDArray[np.generic]]) -> bool:
    """Whether an npz file holds molecules with a table of properties."""
    return all(name in arrays for name in _TABLE)


def _molecules(file: IO[str], source: str) -> Iterator[Atoms]:
    header = file.readline()
    while header.strip():
        count = header.strip()
        comment = file.readline()
        if not count.isdigit() or not _is_comment(comment):
            raise DataError(
                f"{source}: expected a number of atoms and a line `gdb …` with 17 entries, found "
                f"{count[:20]!r} and {comment.strip()[:40]!r}; fetch the file again"
            )
        rows = [file.readline().split() for _ in range(int(count))]
        if any(len(row) < 4 for row in rows):
            raise DataError(f"{source}: announces {count} atoms and has fewer; fetch it again")
        tag, *entries = comment.split()
        del tag
        info = {name: _real(text, source) for name, text in zip(NAMES, entries[1:], strict=True)}
        positions = np.array([[_real(text, source) for text in row[1:4]] for row in rows])
        symbols = [row[0] for row in rows]
        yield _molecule(symbols, positions, info | {"gdb_id": int(entries[0])})
        for _ in ("frequencies", "SMILES", "InChI"):
            file.readline()
        header = file.readline()


def _molecule(
    kinds: list[str] | npt.NDArray[np.generic],
    positions: npt.NDArray[np.generic],
    info: dict[str, float],
) -> Atoms:
    energies = {name: value * HARTREE for name, value in info.items() if name in _HARTREE}
    return Atoms(kinds, positions=positions.astype(np.float64), info=info | energies)


def _is_comment(line: str) -> bool:
    parts = line.split()
    return len(parts) == len(NAMES) + 2 and parts[0] == "gdb"


def _real(text: str, source: str) -> float:
    try:
        return float(text.replace("*^", "e"))
    except ValueError:
        raise DataError(f"{source}: {text[:40]!r} is not a number; fetch the file again") from None
