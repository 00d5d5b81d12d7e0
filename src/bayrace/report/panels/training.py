"""The course of training, from history.jsonl: loss, validation errors, learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bayrace.core.target import ENERGY, Target
from bayrace.report.document import Axis, Mark, Panel

History = Sequence[Mapping[str, Any]]
POINTS = 600  # of one line
_TWO_LOSSES = (
    "Compare solid lines with solid ones only. Dotted: mean over the batches of an epoch, while "
    "weights change, of what is minimised then (in a warm-up the squared error). Solid: the loss "
    "of the validation set at the end of an epoch."
)
Value = Callable[[Mapping[str, Any]], float]


def training_panels(histories: Mapping[str, History], target: Target = ENERGY) -> list[Panel]:
    """One line per run or member; a quantity that was not followed has no panel."""
    histories = {name: lines for name, lines in histories.items() if lines}
    panels = [
        _loss(histories),
        _panel(
            histories,
            "energy",
            f"Validation error of the {target.name}",
            Axis("MAE", target.shown_unit, "log"),
            _valid("energy_mae"),
        ),
        _panel(
            histories,
            "forces",
            "Validation error of the forces",
            Axis("MAE", "meV/Å", "log"),
            _valid("forces_mae"),
        ),
        _panel(
            histories,
            "rate",
            "Learning rate",
            Axis("learning rate", "", "log"),
            lambda line: float(line.get("learning_rate", math.nan)),
        ),
    ]
    return [panel for panel in panels if panel is not None]


def _panel(
    histories: Mapping[str, History], key: str, title: str, y: Axis, value: Value
) -> Panel | None:
    marks = [
        _line(lines, value, _name(name, histories), colour)
        for colour, (name, lines) in enumerate(histories.items(), start=1)
    ]
    marks = [mark for mark in marks if len(mark.x)]
    return (
        Panel(f"training-{key}", title, "", Axis("epoch", whole=True), y, marks) if marks else None
    )


def _loss(histories: Mapping[str, History]) -> Panel | None:
    marks = []
    for colour, (name, lines) in enumerate(histories.items(), start=1):
        prefix = f"{name}, " if len(histories) > 1 else ""
        training = _line(lines, _train_loss, f"{prefix}training", colour, style="faint")
        valid = _line(lines, _valid("loss"), f"{prefix}validation", colour)
        marks += [mark for mark in (training, valid) if len(mark.x)]
    if not marks:
        return None
    values = np.concatenate([np.asarray(mark.y) for mark in marks])
    caption = _TWO_LOSSES if any(mark.style for mark in marks) else ""
    return Panel(
        "training-loss", "Loss", caption, Axis("epoch", whole=True), _loss_axis(values), marks
    )


def _loss_axis(values: np.ndarray[Any, Any]) -> Axis:
    """Log for losses that stay positive; a likelihood is drawn without its first, huge values."""
    if values.min() > 0:
        return Axis("loss", "", "log")
    low, high = float(values.min()), float(np.quantile(values, 0.9))
    margin = 0.08 * max(high - low, 1e-3)
    return Axis("loss", "", "linear", low - margin, high + margin)


def _line(lines: History, value: Value, name: str, colour: int, *, style: str = "") -> Mark:
    points = [(float(line["epoch"]), value(line)) for line in lines]
    points = [point for point in points if math.isfinite(point[1])]
    step = max(1, math.ceil(len(points) / POINTS))
    kept = points[::-step][::-1]  # so that the last epoch is always among them
    x, y = [point[0] for point in kept], [point[1] for point in kept]
    return Mark("line", name, colour, x=x, y=y, style="faint" if style else "")


def _name(name: str, histories: Mapping[str, History]) -> str:
    return name if len(histories) > 1 else ""


def _train_loss(line: Mapping[str, Any]) -> float:
    return float(line.get("train", {}).get("loss", math.nan))


def _valid(key: str) -> Value:
    return lambda line: float((line.get("valid") or {}).get(key, math.nan))
