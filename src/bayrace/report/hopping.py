"""Figures of surface hopping: populations with standard errors, an angle of all trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bayrace.report.figures import COLOURS

Array = NDArray[np.float64]
_STYLES = ("-", "--", ":", "-.")


class Curves(NamedTuple):
    """Populations of one swarm."""

    times: Array  # (K,) fs
    shares: Array  # (K, S), of the trajectories
    errors: Array  # (K, S), standard errors


def populations(swarms: Mapping[str, Curves]) -> Figure:
    """Shares of trajectories in each state, one line style for each swarm, bands of one σ."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for style, (name, curves) in zip(_STYLES * 2, swarms.items(), strict=False):
        for state in range(curves.shares.shape[1]):
            colour = COLOURS[state % len(COLOURS)]
            share, error = curves.shares[:, state], curves.errors[:, state]
            label = f"S{state}, {name}" if name else f"S{state}"
            axes.plot(curves.times, share, style, color=colour, label=label)
            axes.fill_between(
                curves.times, share - error, share + error, color=colour, alpha=0.2, lw=0
            )
    axes.set_xlabel("time (fs)")
    axes.set_ylabel("share of trajectories")
    axes.set_ylim(-0.02, 1.02)
    axes.legend(frameon=False, fontsize=8)
    return figure


def angles(times: Array, angle: Array, active: NDArray[np.int64], *, name: str) -> Figure:
    """An angle (K, T) in degrees against time, coloured by the active state."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for state in range(int(active.max(initial=0)) + 1):
        there = np.where(active == state, angle, np.nan)
        drawn = np.broadcast_to(times[:, None], there.shape)
        axes.plot(
            drawn.ravel(), there.ravel(), ".", ms=1.5, color=COLOURS[state % len(COLOURS)],
            label=f"S{state}",
        )  # fmt: skip
    axes.set_xlabel("time (fs)")
    axes.set_ylabel(f"{name} (°)")
    axes.legend(frameon=False, fontsize=8, markerscale=4)
    return figure
