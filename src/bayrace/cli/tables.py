"""Evaluations as tables: errors in meV beside the σ that was predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from bayrace.data.frame import symbols_of
from bayrace.metrics.accuracy import Errors, Quantities
from bayrace.report.evaluation import Compared, Evaluation

COLUMNS = ("quantity", "unit", "count", "MAE", "RMSE", "R²", "predicted σ")
Row = tuple[str, ...]
_QUANTITIES = (
    ("energy", "energy", "meV"),
    ("energy_per_atom", "energy/atom", "meV/atom"),
    ("forces", "forces", "meV/Å"),
    ("stress", "stress", "meV/Å³"),
)
CAPTION = "predicted σ: root mean square; it equals the RMSE where the uncertainty is right"


def evaluation_table(evaluation: Evaluation) -> Table:
    """All rows of an evaluation, for the terminal."""
    title = f"{evaluation.name}: {evaluation.accuracy.frames} frames"
    table = Table(*COLUMNS, title=Text(title), caption=CAPTION, title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    for section in evaluation_sections(evaluation):
        for row in section:
            table.add_row(*map(Text, row))  # as Text, since [hot] would be read as markup
        table.add_section()
    return table


def evaluation_sections(evaluation: Evaluation) -> Iterator[list[Row]]:
    """Rows of the whole set, then forces by element, then each config_type if there are several."""
    yield list(_rows(evaluation, evaluation.accuracy.total, ""))
    elements = evaluation.accuracy.forces_by_element
    if elements:
        yield [
            _row(f"forces on {symbols_of([number])}", "meV/Å", errors, spread)
            for number, errors in elements.items()
            for spread in [evaluation.forces.spread(evaluation.numbers == number)]
        ]
    types = evaluation.accuracy.by_config_type
    if len(types) > 1:
        for name, quantities in types.items():
            yield list(_rows(evaluation, quantities, name))


def _rows(evaluation: Evaluation, quantities: Quantities, config_type: str) -> Iterator[Row]:
    frames = evaluation.config_types == config_type
    atoms = frames.repeat(evaluation.atoms)
    for key, name, unit in _QUANTITIES:
        errors: Errors | None = getattr(quantities, key)
        if errors is None:
            continue
        compared: Compared = getattr(evaluation, key)
        chosen = None if not config_type else atoms if key == "forces" else frames
        title = f"{name} [{config_type}]" if config_type else name
        yield _row(title, unit, errors, compared.spread(chosen))


def _row(title: str, unit: str, errors: Errors, spread: float | None) -> Row:
    r2 = "–" if math.isnan(errors.r2) else f"{errors.r2:.4f}"
    sigma = "–" if spread is None else _milli(spread)
    return (title, unit, str(errors.count), _milli(errors.mae), _milli(errors.rmse), r2, sigma)


def _milli(value: float) -> str:
    """A number in eV as meV with three significant digits or two decimals."""
    number = 1000 * value
    return f"{number:.2f}" if abs(number) >= 0.1 or number == 0 else f"{number:.2g}"
