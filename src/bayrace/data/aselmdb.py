"""Files .aselmdb, as OMat24 and OMol25 come in: rows of an ASE database in LMDB.

The format (ase-db-backends, fairchem): a key is the number of a row in ASCII, from 1; its value is
JSON, compressed by zlib, of what ASE's databases know of a structure, with arrays as lists or as
{"__ndarray__": [shape, dtype, numbers]}. `nextid`, `deleted_ids` and `metadata` are no rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties

from bayrace.core.files import whole_file
from bayrace.data.frame import DataError, Integers, results_of
from bayrace.data.stored import Stored, stored

SUFFIX = ".aselmdb"
_LARGEST = 2**41  # bytes: a limit of the address space, not of the disk
_REOPEN = 4000  # rows, after which pages are let go of: the system maps 64 kB around each
_COMMIT = 1000  # rows of a transaction


class AseLmdb:
    """Rows of a file, read one at a time; the memory it takes does not grow with the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._open()
        count = self._document(b"nextid")
        deleted = self._document(b"deleted_ids") or []
        if not isinstance(count, int):
            raise DataError(f"{path}: no rows of an ASE database; write the file again")
        self._ids: Integers | None = None  # None: 1, 2, 3, ...
        self._count = count - 1
        if deleted:
            self._ids = np.setdiff1d(np.arange(1, count, dtype=np.int64), deleted)
            self._count = len(self._ids)

    def __len__(self) -> int:
        return self._count

    def row(self, index: int) -> Stored:
        """The structure at a place, from 0."""
        number = index + 1 if self._ids is None else int(self._ids[index])
        self._read += 1
        if self._read % _REOPEN == 0:
            self.close()
            self._open()
        place = f"{self.path}, frame {index}"
        content = self._document(str(number).encode())
        if not isinstance(content, dict):
            raise DataError(f"{place}: row {number} is missing; write the file again")
        return stored(content, place=place)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _open(self) -> None:
        lmdb, _ = _packages()
        try:
            self._file = lmdb.open(
                str(self.path), subdir=False, readonly=True, lock=False, readahead=False
            )
        except lmdb.Error as error:
            raise DataError(f"{self.path}: cannot be read as LMDB ({error})") from error

    def _document(self, key: bytes) -> Any:
        """What a key stands for; None where it is not there."""
        _, orjson = _packages()
        with self._file.begin() as transaction:
            data = transaction.get(key)
        if data is None:
            return None
        try:
            return orjson.loads(zlib.decompress(data))
        except (zlib.error, ValueError) as error:
            raise DataError(
                f"{self.path}, row {key.decode()}: damaged ({error}); fetch the file again"
            ) from error


def open_aselmdb(path: Path) -> AseLmdb:
    """The rows of a file, which LMDB allows a process to open only once."""
    name, status = str(path.resolve()), path.stat()
    version = (status.st_ino, status.st_size, status.st_mtime_ns)
    if name in _OPEN and _OPEN[name][0] != version:
        _OPEN.pop(name)[1].close()
    if name not in _OPEN:
        _OPEN[name] = (version, AseLmdb(path))
    return _OPEN[name][1]


_OPEN: dict[str, tuple[tuple[int, int, int], AseLmdb]] = {}


def write_aselmdb(path: Path, structures: Iterable[Atoms]) -> int:
    """Write structures with their results and all that is known of them; how many there were."""
    lmdb, _ = _packages()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        options = {"map_size": _LARGEST, "lock": False, "sync": False, "metasync": False}
        file = lmdb.open(str(part), subdir=False, **options)
        count = 0
        transaction = file.begin(write=True)
        for atoms in structures:
            count += 1
            transaction.put(str(count).encode(), _packed(row_of(atoms)))
            if count % _COMMIT == 0:
                transaction.commit()
                transaction = file.begin(write=True)
        transaction.put(b"nextid", _packed(count + 1))
        transaction.commit()
        file.sync(True)
        file.close()
    return count


def row_of(atoms: Atoms) -> dict[str, Any]:
    """What a row holds of ASE atoms."""
    results = results_of(atoms)
    row = {
        "numbers": _array(atoms.numbers),
        "positions": _array(atoms.positions),
        "cell": _array(atoms.cell.array),
        "pbc": _array(atoms.pbc),
        "calculator": "unknown",
        "calculator_parameters": {},
        **{name: _plain(results[name]) for name in all_properties if name in results},
    }
    pairs = {key: _plain(value) for key, value in atoms.info.items() if _simple(value)}
    data = {key: _plain(value) for key, value in atoms.info.items() if not _simple(value)}
    own = {"numbers", "positions"}
    data |= {key: _plain(value) for key, value in atoms.arrays.items() if key not in own}
    return {**row, "key_value_pairs": pairs, "data": data}


def _packed(content: Any) -> bytes:
    _, orjson = _packages()
    return zlib.compress(orjson.dumps(content))


def _simple(value: Any) -> bool:
    return isinstance(value, str | bool | int | float | np.number | np.bool_)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _array(value)
    return value.item() if isinstance(value, np.generic) else value


def _array(value: Any) -> Any:
    array = np.asarray(value)
    return {"__ndarray__": [list(array.shape), str(array.dtype), array.ravel().tolist()]}


def _packages() -> tuple[Any, Any]:
    try:
        import lmdb
        import orjson
    except ImportError as error:
        raise DataError(
            f"{SUFFIX} files need {error.name}; install it with: pip install 'bayrace[large]'"
        ) from None
    return lmdb, orjson
