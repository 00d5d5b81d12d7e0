"""Evaluations as tables: errors in meV, quality of the predicted σ, detection of the unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from bayrace.core.target import ENERGY, Target
from bayrace.data.frame import symbols_of
from bayrace.evaluate.evaluation import Compared, Evaluation
from bayrace.evaluate.metrics.accuracy import Errors, Quantities
from bayrace.evaluate.metrics.calibration import SHOWN_LEVELS
from bayrace.evaluate.metrics.ood import NOVELTY, Detection
from bayrace.evaluate.metrics.quality import Quality, Whitened

COLUMNS = ("quantity", "unit", "count", "MAE", "RMSE", "R²", "predicted σ")
Row = tuple[str, ...]
_QUANTITIES = (
    ("energy", "energy", "meV", 1000.0),
    ("energy_per_atom", "energy/atom", "meV/atom", 1000.0),
    ("forces", "forces", "meV/Å", 1000.0),
    ("stress", "stress", "meV/Å³", 1000.0),
)
CAPTION = (
    "predicted σ: root mean square; it equals the RMSE where the uncertainty is right; "
    "–: not modelled"
)
_UNKNOWN = ";\nnan: not known, as the training data had no such labels"
QUALITY_COLUMNS = (
    "quantity",
    "CE",
    "area",
    *(f"{100 * level:.0f} %" for level in SHOWN_LEVELS),
    "ENCE",
    "NLL",
    "CRPS",
    "rank corr.",
)
QUALITY_CAPTION = (
    "CE: calibration error, 0 to 0.332; area: miscalibration, 0 to 0.5; %: labels inside the "
    "interval;\nCRPS in meV, meV/Å, meV/Å³; whitened: ellipsoids of force vectors"
)
CALIBRATION_COLUMNS = (
    "quantity",
    "count",
    "CE before",
    "after",
    "in 90 % before",
    "after",
    "factor of σ",
)
DETECTION_COLUMNS = ("score", "AUROC", "AUPR")
_SCORES = {
    NOVELTY: "novelty of the structure",
    "energy_total": "energy σ / √atoms",
    "energy_epistemic": "energy σ / √atoms, epistemic",
    "forces_mean_total": "mean force σ",
    "forces_max_total": "largest force σ",
    "forces_mean_epistemic": "mean force σ, epistemic",
    "forces_max_epistemic": "largest force σ, epistemic",
}


def evaluation_table(evaluation: Evaluation) -> Table:
    """Errors of an evaluation, for the terminal."""
    title = f"{evaluation.name}: {evaluation.accuracy.frames} frames"
    sections = list(evaluation_sections(evaluation))
    unknown = any(row[-1] == "nan" for section in sections for row in section)
    caption = CAPTION + _UNKNOWN * unknown
    return _table(title, COLUMNS, sections, caption=caption, texts=2)


def quality_table(evaluation: Evaluation) -> Table | None:
    """Metrics of the predicted σ, for the terminal; None where none is predicted."""
    sections = [section for section in quality_sections(evaluation) if section]
    title = f"{evaluation.name}: quality of the predicted σ"
    if not sections:
        return None
    caption, target = QUALITY_CAPTION, evaluation.target
    if not target.is_energy:
        caption = f"{QUALITY_CAPTION.partition('CRPS')[0]}CRPS in {target.shown_unit}"
    return _table(title, QUALITY_COLUMNS, sections, caption=caption)


def detection_table(
    known: str, unknown: str, found: Mapping[str, Detection | None], target: Target = ENERGY
) -> Table | None:
    """AUROC and AUPR of every score that says anything; None where none does."""
    rows = [
        (_score_name(name, target), f"{each.auroc:.3f}", f"{each.aupr:.3f}")
        for name, each in found.items()
        if each is not None
    ]
    title = f"{unknown} (unknown) against {known} (known)"
    return _table(title, DETECTION_COLUMNS, [rows]) if rows else None


def _score_name(score: str, target: Target) -> str:
    name = _SCORES[score].replace("energy", target.name)
    return name if target.extensive else name.replace(" / √atoms", "")


def evaluation_sections(evaluation: Evaluation) -> Iterator[list[Row]]:
    """Rows of the whole set, then forces by element, then each config_type if there are several."""
    yield list(_rows(evaluation, evaluation.accuracy.total, ""))
    elements = evaluation.accuracy.forces_by_element
    if elements:
        yield [
            _row(f"forces on {symbols_of([number])}", "meV/Å", errors, spread, factor=1000.0)
            for number, errors in elements.items()
            for spread in [evaluation.forces.spread(evaluation.numbers == number)]
        ]
    types = evaluation.accuracy.by_config_type
    if len(types) > 1:
        for name, quantities in types.items():
            yield list(_rows(evaluation, quantities, name))


def quality_sections(evaluation: Evaluation) -> Iterator[list[Row]]:
    """Rows in the order of `evaluation_sections`; empty where no σ is predicted."""
    yield list(_quality_rows(evaluation, ""))
    yield [
        _quality_row(f"forces on {symbols_of([number])}", found, factor=1000.0)
        for number in evaluation.accuracy.forces_by_element
        for found in [evaluation.forces.quality(evaluation.numbers == number)]
        if found is not None
    ]
    types = evaluation.accuracy.by_config_type
    if len(types) > 1:
        for name in types:
            yield list(_quality_rows(evaluation, name))


def _table(
    title: str,
    columns: Sequence[str],
    sections: Iterable[Sequence[Row]],
    *,
    caption: str | None = None,
    texts: int = 1,
) -> Table:
    """A table whose columns after the first `texts` are numbers."""
    table = Table(*columns, title=Text(title), caption=caption, title_justify="left")
    for column in table.columns[texts:]:
        column.justify = "right"
    for section in sections:
        for row in section:
            table.add_row(*map(Text, row))  # as Text, since [hot] would be read as markup
        table.add_section()
    return table


def _quality_rows(evaluation: Evaluation, config_type: str) -> Iterator[Row]:
    frames = evaluation.config_types == config_type if config_type else None
    atoms = None if frames is None else frames.repeat(evaluation.atom_counts)
    suffix = f" [{config_type}]" if config_type else ""
    found = evaluation.uncertainty(frames)
    if found["energy"] is not None:
        target = evaluation.target
        yield _quality_row(f"{target.name}{suffix}", found["energy"], factor=target.factor)
    whitened = evaluation.whitened(atoms)
    if found["forces"] is not None:
        yield _quality_row(f"forces{suffix}", found["forces"], factor=1000.0)
        if whitened is not None:
            yield _quality_row(f"forces{suffix}, whitened", whitened, factor=1000.0)
    if found["stress"] is not None:
        yield _quality_row(f"stress{suffix}", found["stress"], factor=1000.0)


def _quality_row(title: str, found: Quality | Whitened, *, factor: float) -> Row:
    coverage = tuple(f"{100 * value:.1f}" for value in found.coverage.values())
    common = (title, f"{found.calibration_error:.5f}", f"{found.miscalibration_area:.4f}")
    if isinstance(found, Whitened):
        return (*common, *coverage, "–", f"{found.nll:.3f}", "–", "–")
    rest = (_number(found.ence), _number(found.nll), _scaled(found.crps, factor))
    return (*common, *coverage, *rest, _number(found.rank_correlation))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _rows(evaluation: Evaluation, quantities: Quantities, config_type: str) -> Iterator[Row]:
    frames = evaluation.config_types == config_type
    atoms = frames.repeat(evaluation.atom_counts)
    target = evaluation.target
    own = (("energy", target.name, target.shown_unit, target.factor),)
    for key, name, unit, factor in _QUANTITIES if target.is_energy else own:
        errors: Errors | None = getattr(quantities, key)
        if errors is None:
            continue
        compared: Compared = getattr(evaluation, key)
        chosen = None if not config_type else atoms if key == "forces" else frames
        title = f"{name} [{config_type}]" if config_type else name
        yield _row(title, unit, errors, compared.spread(chosen), factor=factor)


def _row(title: str, unit: str, errors: Errors, spread: float | None, *, factor: float) -> Row:
    r2 = "–" if math.isnan(errors.r2) else f"{errors.r2:.4f}"
    sigma = "–" if spread is None else _scaled(spread, factor)
    mae, rmse = (_scaled(value, factor) for value in (errors.mae, errors.rmse))
    return (title, unit, str(errors.count), mae, rmse, r2, sigma)


def _scaled(value: float, factor: float) -> str:
    """A number in the unit that is shown, with three significant digits or two decimals."""
    number = factor * value
    if factor == 1.0:
        return f"{number:.3g}" if abs(number) < 100 else f"{number:.1f}"
    return f"{number:.2f}" if abs(number) >= 0.1 or number == 0 else f"{number:.2g}"


def calibration_table(before: Evaluation, after: Evaluation, factors: Mapping[str, str]) -> Table:
    """Calibration errors before and after a recalibration, and its factors of σ by quantity."""
    rows = []
    pairs = [
        (name, found, after.uncertainty()[name]) for name, found in before.uncertainty().items()
    ]
    whole = [*pairs, ("forces, whitened", before.whitened(), after.whitened())]
    for name, old, new in whole:
        if old is not None and new is not None:
            errors = (f"{old.calibration_error:.5f}", f"{new.calibration_error:.5f}")
            inside = (f"{100 * old.coverage[0.9]:.1f}", f"{100 * new.coverage[0.9]:.1f}")
            shown = before.target.name if name == "energy" else name
            rows.append((shown, str(old.count), *errors, *inside, factors.get(name, "")))
    title = f"{before.name}: {before.accuracy.frames} frames, the ones fitted to"
    caption = "on new frames the error after is larger: see bayrace evaluate"
    return _table(title, CALIBRATION_COLUMNS, [rows], caption=caption)
