"""What came of a replay: the cells of its table as files, and their means over seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bayrace.data.frame import DataError
from bayrace.train.checkpoint import write_atomically

START, NOTHING = "start", "none"
"""Rows beside the acquisitions: the potential as it was, and trained on without new structures."""
QUANTITIES = ("energy", "energy_per_atom", "forces")


@dataclass(frozen=True)
class Cell:
    """One experiment."""

    acquisition: str  # or START, NOTHING
    budget: int  # structures from each pool
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.acquisition}-{self.budget}-seed{self.seed}"


@dataclass(frozen=True)
class CellResult:
    """What an experiment found."""

    cell: Cell
    chosen: Mapping[str, tuple[int, ...]]  # by pool, places in the pool's files
    frames: Mapping[str, int]  # by test set
    errors: Mapping[str, Mapping[str, Mapping[str, float]]]  # set, quantity, "rmse" "mae"; eV, Å
    members: int  # of the potential
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """A JSON-able mapping."""
        return {**vars(self), "cell": vars(self.cell)}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> CellResult:
        """The inverse of `to_json`."""
        chosen = {name: tuple(places) for name, places in content["chosen"].items()}
        return CellResult(**{**content, "cell": Cell(**content["cell"]), "chosen": chosen})


@dataclass(frozen=True)
class SeedStatistics:
    """A number over several seeds."""

    mean: float
    std: float | None  # None for a single seed
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> SeedStatistics:
        """Mean and standard deviation, that of the population estimated."""
        return SeedStatistics(mean(values), stdev(values) if len(values) > 1 else None, len(values))


def store(folder: Path, result: CellResult, identity: str) -> None:
    """Write a cell's file, as a whole or not at all."""
    content = {"identity": identity, **result.to_json()}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(_path(folder, result.cell), json.dumps(content, indent=1).encode())


def find(folder: Path, cell: Cell, identity: str) -> CellResult | None:
    """A stored cell; refused if it came of other data, another potential or other settings."""
    path = _path(folder, cell)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found, result = content.pop("identity"), CellResult.from_json(content)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it, and it is made again") from error
    if found != identity:
        raise DataError(
            f"{path}: came of another potential, other data or other settings; choose another "
            "folder with -s output=..., or start anew with --overwrite"
        )
    return result


def summary(
    results: Sequence[CellResult], quantity: str, *, kind: str = "rmse"
) -> dict[str, dict[tuple[str, int], SeedStatistics]]:
    """Means over seeds by test set and (acquisition, budget), in the order of the results."""
    return _spreads(results, lambda result, name: _error(result, name, quantity, kind))


def relative(
    results: Sequence[CellResult], quantity: str, *, to: str = "random", kind: str = "rmse"
) -> dict[str, dict[tuple[str, int], SeedStatistics]]:
    """Errors as fractions of those of another acquisition, of the same budget, seed and test set.

    Pairs share what they are tested on, so their ratio varies less than either error.
    """
    known = {(r.cell.budget, r.cell.seed): r for r in results if r.cell.acquisition == to}

    def ratio(result: CellResult, name: str) -> float | None:
        base = known.get((result.cell.budget, result.cell.seed))
        below = None if base is None else _error(base, name, quantity, kind)
        above = _error(result, name, quantity, kind)
        return None if above is None or not below else above / below

    return _spreads([r for r in results if r.cell.acquisition not in (START, NOTHING)], ratio)


def _spreads(results: Sequence[CellResult], number: Any) -> dict[str, dict[Any, SeedStatistics]]:
    values: dict[str, dict[tuple[str, int], list[float]]] = {}
    for result in results:
        for name in result.errors:
            value = number(result, name)
            if value is not None:
                key = (result.cell.acquisition, result.cell.budget)
                values.setdefault(name, {}).setdefault(key, []).append(value)
    return {
        name: {key: SeedStatistics.of(numbers) for key, numbers in found.items()}
        for name, found in values.items()
    }


def _error(result: CellResult, name: str, quantity: str, kind: str) -> float | None:
    return result.errors[name].get(quantity, {}).get(kind)


def _path(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.name}.json"
