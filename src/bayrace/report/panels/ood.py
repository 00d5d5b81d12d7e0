"""Does the uncertainty notice unknown structures? Histograms of scores and ROC curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bayrace.evaluate.judged import ENERGY_SCORE, FORCES_SCORE, Array, Judged
from bayrace.evaluate.metrics.ood import NOVELTY, aupr, auroc
from bayrace.report.curves import histogram, roc
from bayrace.report.document import Axis, Mark, Panel
from bayrace.report.panels.accuracy import MILLI

DRAWN = (ENERGY_SCORE, FORCES_SCORE, NOVELTY)
_STYLES: Mapping[str, Literal["dashed", "thin"]] = {FORCES_SCORE: "dashed", NOVELTY: "thin"}


class _Score(NamedTuple):
    """A score as a histogram names it."""

    score: str
    title: str
    short: str
    label: str
    unit: str
    factor: float


def _drawn(sets: Sequence[Judged]) -> tuple[_Score, ...]:
    target = sets[0].target
    size = " / √atoms" if target.extensive else ""
    title = f"{target.name[0].upper()}{target.name[1:]} score"
    first = _Score(
        ENERGY_SCORE,
        title,
        target.name,
        f"σ of the {target.name}{size}",
        target.shown_unit,
        target.factor,
    )
    label = "σ of the forces, mean over atoms"
    second = _Score(FORCES_SCORE, "Force score", "forces", label, "meV/Å", MILLI)
    return first, second, _Score(NOVELTY, "Novelty", NOVELTY, "novelty of the structure", "", 1.0)


@dataclass(frozen=True)
class Detection:
    """How well one score separates one unknown set from all known ones."""

    name: str  # of the unknown set
    score: str
    auroc: float
    aupr: float
    false: Array
    true: Array


def detections(sets: Sequence[Judged]) -> list[Detection]:
    """Every score on every unknown set; empty without either kind of set."""
    known = [each for each in sets if each.role == "test"]
    if not known:
        return []
    return [
        Detection(
            each.name, score, auroc(values, unknown), aupr(values, unknown), *roc(values, unknown)
        )
        for each in sets
        if each.role == "ood"
        for score, unknown in each.scores.items()
        if all(score in one.scores for one in known)
        for values in [np.concatenate([one.scores[score] for one in known])]
    ]


def histogram_panels(sets: Sequence[Judged]) -> list[Panel]:
    """Distributions of each score."""
    panels = []
    for score, title, _, label, unit, factor in _drawn(sets):
        if not all(score in each.scores for each in sets):
            continue
        values = [factor * each.scores[score] for each in sets]
        edges, fractions = histogram(values)
        marks = [
            Mark("bars", each.name, colour, x=edges, y=100 * fraction)
            for colour, (each, fraction) in enumerate(zip(sets, fractions, strict=True), start=1)
        ]
        panels.append(
            Panel(
                f"histogram-{score}",
                title,
                f"Distribution over structures of the {label[0].lower()}{label[1:]}. The further "
                "apart known and unknown sets are, the safer an alarm.",
                Axis(label, unit, "log"),
                Axis("structures", "%", low=0),
                marks,
            )
        )
    return panels


def roc_panel(sets: Sequence[Judged]) -> Panel | None:
    """True against false alarms over all thresholds."""
    colours = {each.name: colour for colour, each in enumerate(sets, start=1)}
    marks = [Mark("line", "chance", x=[0, 100], y=[0, 100], style="dashed")]
    titles = {score: title for score, _, title, *_ in _drawn(sets)}
    for each in detections(sets):
        if each.score not in titles:
            continue
        name = f"{each.name}, {titles[each.score]}: AUROC {each.auroc:.3f}"
        x, y = 100 * each.false, 100 * each.true
        marks.append(
            Mark(
                "line",
                name,
                colours[each.name],
                x=x,
                y=y,
                style=_STYLES.get(each.score, ""),
            )
        )
    if len(marks) == 1:
        return None
    return Panel(
        "roc",
        "Receiver operating characteristic",
        "A structure raises an alarm when its score exceeds a threshold. Each point of a curve is "
        "one threshold: the share of unknown structures that are caught against the share of "
        "known ones that raise a false alarm.",
        Axis("known structures above threshold", "%", low=0, high=100),
        Axis("unknown structures above threshold", "%", low=0, high=100),
        marks,
        square=True,
    )
