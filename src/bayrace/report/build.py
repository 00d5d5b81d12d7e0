"""Put a report together: which question has which section, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayrace.core.target import Target
from bayrace.evaluate.judged import Judged
from bayrace.report.curves import thinned
from bayrace.report.document import Block, Report, Section, Table, rounded
from bayrace.report.panels.accuracy import parity_panels
from bayrace.report.panels.ood import Detection, detections, histogram_panels, roc_panel
from bayrace.report.panels.structures import worst_structures
from bayrace.report.panels.training import History, training_panels
from bayrace.report.panels.uncertainty import calibration_panels, interval_panels, spread_panels
from bayrace.report.summary import findings, key_figures
from bayrace.report.tables import (
    accuracy_table,
    detection_table,
    element_table,
    type_table,
    uncertainty_tables,
)

MOST = 6000  # structures whose numbers the page holds for the download


def build_report(
    sets: Sequence[Judged],
    *,
    title: str,
    subtitle: str = "",
    facts: Mapping[str, str],
    histories: Mapping[str, History] | None = None,
    extra: Sequence[Section] = (),
) -> Report:
    """A report on sets, known ones first; `histories` are the lines of history.jsonl by run."""
    if not sets:
        raise ValueError("no sets to report on; give at least one labelled file")
    sets = sorted(sets, key=lambda each: each.role == "ood")
    found = detections(sets)
    sections = [
        _section(
            "accuracy",
            "How large are the errors?",
            "",
            [*parity_panels(sets), accuracy_table(sets)],
        ),
        _uncertainty(sets),
        _unknown(sets, found),
        _section(
            "parts",
            "Where are the errors?",
            "",
            [table for table in (element_table(sets), type_table(sets)) if table],
        ),
        _structures(sets),
        _training(histories or {}, sets[0].target),
        *extra,
    ]
    return Report(
        title=title,
        subtitle=subtitle,
        facts=facts,
        findings=findings(sets, found),
        figures=key_figures(sets, found),
        sections=[each for each in sections if each is not None],
        numbers={"sets": {each.name: _numbers(each, most=MOST // len(sets)) for each in sets}},
    )


def _uncertainty(sets: Sequence[Judged]) -> Section | None:
    blocks: list[Block] = [
        *spread_panels(sets),
        *calibration_panels(sets),
        *interval_panels(sets),
    ]
    return _section(
        "uncertainty",
        "Are the uncertainties right?",
        "A predicted σ is right when errors are as large as it says, for every size of σ: its "
        "intervals then hold as many references as they claim.",
        [*blocks, *uncertainty_tables(sets)],
    )


def _unknown(sets: Sequence[Judged], found: Sequence[Detection]) -> Section | None:
    if not any(each.uncertain for each in sets):
        return None
    blocks: list[Block] = [*histogram_panels(sets)]
    curve, table = roc_panel(sets), detection_table(found, sets[0].target)
    blocks += [each for each in (curve, table) if each is not None]
    text = (
        "Structures unlike the training data should get a larger σ, so that a simulation can stop "
        "before it goes wrong."
    )
    if not found:
        text += " No unknown set was given: see --ood."
    return _section("unknown", "Does it notice what it does not know?", text, blocks)


def _structures(sets: Sequence[Judged]) -> Section | None:
    shown = worst_structures(sets)
    return _section("structures", "The worst structures", "", [shown] if shown else [])


def _training(histories: Mapping[str, History], target: Target) -> Section | None:
    return _section("training", "How was it trained?", "", training_panels(histories, target))


def _section(key: str, title: str, text: str, blocks: Sequence[Block]) -> Section | None:
    kept = [each for each in blocks if not isinstance(each, Table) or each.rows]
    return Section(key, title, text, kept) if kept else None


def _numbers(each: Judged, *, most: int) -> dict[str, Any]:
    """Per structure, eV and Å, for the download; what has no label is nan.

    Of a set of more than `most` structures, so many are chosen at random.
    """
    count = len(each.frames)
    chosen = thinned(count, most)
    columns: dict[str, Any] = {"atoms": each.atom_counts}
    for name in ("label", "mean", "std", "low", "high"):
        columns[f"energy_{name}"] = np.full(count, np.nan)
        columns[f"energy_{name}"][each.energy.frame] = getattr(each.energy, name)
    squares = np.bincount(each.forces.frame, weights=each.forces.error**2, minlength=count)
    components = np.bincount(each.forces.frame, minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        columns["forces_rmse"] = np.sqrt(squares / components)
    columns |= {f"score_{name}": values for name, values in each.scores.items()}
    frames = [each.frames[place] for place in chosen]
    named = {
        "frame": [frame.index for frame in frames],
        "config_type": [frame.config_type for frame in frames],
    }
    values = {name: rounded(column[chosen], digits=10) for name, column in columns.items()}
    return {"role": each.role, "count": count, "structures": named | values}
