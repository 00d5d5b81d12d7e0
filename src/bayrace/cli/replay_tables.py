"""The tables of a replay: errors by acquisition and budget, with their spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from bayrace.workflow.replay_results import CellResult, SeedStatistics, relative, summary

_TITLES = {"start": "as it was", "none": "trained on, nothing new"}


def tables(results: Sequence[CellResult]) -> list[Table]:
    """A table for each test set: rows are acquisitions, columns budgets."""
    energy, forces = summary(results, "energy"), summary(results, "forces")
    ratio = relative(results, "forces")
    budgets = sorted({r.cell.budget for r in results if r.cell.budget})
    rows = list(dict.fromkeys(result.cell.acquisition for result in results))
    found = []
    for name in results[0].errors:
        counts = sorted({result.frames[name] for result in results})
        size = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        title = f"{name}: RMSE of energy, meV / forces, meV/Å; {size} test structures"
        heads = [head for n in budgets for head in (f"+{n}", f"+{n}, forces / random")]
        table = Table(
            "chosen by", *heads, title=Text(title), title_justify="left", caption=_CAPTION
        )
        for row in rows:
            cells: list[str] = []
            for budget in budgets:
                key = (row, 0 if row in _TITLES else budget)
                both = (energy.get(name, {}).get(key), forces.get(name, {}).get(key))
                cells.append(" / ".join(_milli(each) for each in both))
                cells.append(_ratio(ratio.get(name, {}).get(key)))
            table.add_row(_TITLES.get(row, row), *cells)
        for column in table.columns[1:]:
            column.justify = "right"
        found.append(table)
    return found


_CAPTION = "mean ± standard deviation over seeds; fractions are of pairs of the same seed"


def _milli(value: SeedStatistics | None) -> str:
    return "–" if value is None else _text(1000 * value.mean, value.std and 1000 * value.std, 1)


def _ratio(value: SeedStatistics | None) -> str:
    return "–" if value is None else _text(value.mean, value.std, 3)


def _text(number: float, std: float | None, digits: int) -> str:
    return f"{number:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")
