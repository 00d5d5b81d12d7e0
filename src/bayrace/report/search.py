"""Figures of a search: every trial as a line through its values, and which values matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

_MAP = "viridis_r"
Point = tuple[Mapping[str, Any], float]
"""Values by key, and their score."""


def search_figure(points: Sequence[Point], importance: Mapping[str, float]) -> Figure:
    """Parallel coordinates of complete trials, and the importance of each key where known."""
    if not points:
        raise ValueError("no complete trial to draw; let the search finish at least one")
    figure = Figure(figsize=(10.5 if importance else 7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        1, 2 if importance else 1, width_ratios=[2, 1][: 1 + bool(importance)]
    )
    axes = figure.add_subplot(grid[0])
    scores = np.array([score for _, score in points])
    colours = ScalarMappable(Normalize(float(scores.min()), float(scores.max())), _MAP)
    _coordinates(axes, points, colours)
    figure.colorbar(colours, ax=axes, label="score (less is better)")
    if importance:
        _importance(figure.add_subplot(grid[1]), importance)
    return figure


def _coordinates(axes: Axes, points: Sequence[Point], colours: ScalarMappable) -> None:
    keys = list(points[0][0])
    columns = {key: [values.get(key) for values, _ in points] for key in keys}
    heights = np.stack([_heights(columns[key]) for key in keys])
    places = np.arange(len(keys))
    for number in np.argsort([-score for _, score in points]):
        colour = colours.to_rgba(points[number][1])
        axes.plot(places, heights[:, number], "o-", color=colour, lw=1.5, ms=4, clip_on=False)
    for place, key in zip(places, keys, strict=True):
        axes.axvline(float(place), color="0.8", lw=1, zorder=0)
        for height, text in _ticks(columns[key], heights[place]):
            axes.annotate(text, (place, height), (4, 0), textcoords="offset points", fontsize=7)
    axes.set_xticks(places, [key.replace(".", ".\n") for key in keys], fontsize=8)
    axes.set_yticks([])
    axes.set_ylim(-0.05, 1.05)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _heights(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Numbers by rank-free position from 0 to 1, even in the logarithm where they span a decade."""
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
        numbers = np.array(values, dtype=np.float64)
        if numbers.min() > 0 and numbers.max() / numbers.min() > 10:
            numbers = np.log(numbers)
        width = np.ptp(numbers)
        return (numbers - numbers.min()) / width if width else np.full(len(values), 0.5)
    names = sorted({str(each) for each in values})
    step = max(len(names) - 1, 1)
    return np.array([names.index(str(each)) / step for each in values])


def _ticks(values: Sequence[Any], heights: np.ndarray[Any, Any]) -> list[tuple[float, str]]:
    """Labels of the distinct values, of the ends alone where there are many."""
    seen = {
        float(height): f"{value:.3g}" if isinstance(value, float) else str(value)
        for value, height in zip(values, heights, strict=True)
    }
    ordered = sorted(seen.items())
    return ordered if len(ordered) <= 5 else [ordered[0], ordered[-1]]


def _importance(axes: Axes, importance: Mapping[str, float]) -> None:
    ordered = sorted(importance.items(), key=lambda item: item[1])
    axes.barh([key for key, _ in ordered], [100 * share for _, share in ordered], color="#2f6f9f")
    axes.set_xlabel("importance for the score (%)")
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
