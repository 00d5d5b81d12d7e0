"""One row of a database of structures, with just enough of ASE's Atoms to become a frame.

Making ASE atoms and a calculator of each row would take most of the time of reading it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator
from numpy.typing import NDArray

from bayrace.data.frame import DataError, Frame, LabelKeys, frame_from_atoms


class _Cell(NamedTuple):
    array: NDArray[np.float64]


class _Results(NamedTuple):
    results: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Stored:
    """A structure as a database holds it: geometry, results of a calculator, and all else."""

    numbers: NDArray[np.int64]
    positions: NDArray[np.float64]  # (n, 3) Å
    cell: _Cell
    pbc: NDArray[np.bool_]
    calc: _Results
    info: dict[str, Any]  # key-value pairs and data
    arrays: dict[str, Any]  # values of every atom

    def __len__(self) -> int:
        return len(self.numbers)

    def frame(self, keys: LabelKeys, *, source: str, index: int) -> Frame:
        """With its labels."""
        return frame_from_atoms(cast("Atoms", self), keys=keys, source=source, index=index)

    def atoms(self) -> Atoms:
        """As ASE has it."""
        cell = self.cell.array
        atoms = Atoms(self.numbers, positions=self.positions, cell=cell, pbc=self.pbc)
        atoms.info.update(self.info)
        for name, value in self.arrays.items():
            atoms.arrays[name] = value
        if self.calc.results:
            results = self.calc.results
            atoms.calc = SinglePointCalculator(atoms, **results)  # type: ignore[no-untyped-call]
        return atoms


def stored(row: dict[str, Any], *, place: str) -> Stored:
    """The structure of a row as ASE's databases write it; `place` is for messages."""
    try:
        numbers = np.asarray(value_of(row["numbers"]), dtype=np.int64)
        positions = np.asarray(value_of(row["positions"]), dtype=np.float64).reshape(-1, 3)
        cell = np.asarray(value_of(row.get("cell", np.zeros((3, 3)))), dtype=np.float64)
        pbc = np.asarray(value_of(row.get("pbc", [False] * 3)), dtype=bool)
        results = {
            name: value_of(row[name]) for name in all_properties if row.get(name) is not None
        }
        extra = {**_mapping(row.get("key_value_pairs")), **_mapping(row.get("data"))}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{place}: not a structure as ASE's databases hold them ({error!r}); "
            "write the file again, for example with `bayrace convert`"
        ) from error
    values = {name: value_of(value) for name, value in extra.items()}
    by_atom = {
        name: value
        for name, value in values.items()
        if isinstance(value, np.ndarray) and value.ndim and len(value) == len(numbers)
    }
    info = {name: value for name, value in values.items() if name not in by_atom}
    matrix = _Cell(np.diag(cell) if cell.shape == (3,) else cell.reshape(3, 3))
    return Stored(numbers, positions, matrix, pbc, _Results(results), info, by_atom)


def value_of(value: Any) -> Any:
    """A value of the JSON of ASE: {"__ndarray__": [shape, dtype, numbers]} and lists are arrays."""
    if isinstance(value, dict) and "__ndarray__" in value:
        shape, dtype, numbers = value["__ndarray__"]
        return np.array(numbers, dtype=dtype).reshape(shape)
    if isinstance(value, list):
        return np.array(value)
    return value


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
