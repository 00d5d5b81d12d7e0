"""Figures of a run, drawn without a display: parity, learning curves, errors against σ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from bayrace.core.target import ENERGY, Target
from bayrace.evaluate.evaluation import Evaluation
from bayrace.train.checkpoint import write_atomically

COLOURS = ("#2f6f9f", "#d1603d", "#4c9f70", "#8a5a9e")
MILLI = 1000.0  # eV to meV
_DRAWN = 20_000  # points of a scatter, beyond which a random part is drawn


def parity(evaluations: Sequence[Evaluation]) -> Figure:
    """Predicted against reference energies and force components."""
    if not evaluations[0].target.is_energy:
        return _property_parity(evaluations)
    figure, (left, right) = _panels(2)
    for colour, evaluation in zip(_colours(evaluations), evaluations, strict=True):
        energy, forces = evaluation.energy_per_atom.known(), evaluation.forces.known()
        centre = _centre(evaluations)
        label, mean = ((each - centre) * MILLI for each in (energy.label, energy.mean))
        _scatter(left, label, mean, evaluation.name, colour)
        _scatter(right, forces.label, forces.mean, evaluation.name, colour)
    for axes, quantity, unit in (
        (left, "energy", "meV/atom"),
        (right, "force component", "eV/Å"),
    ):
        _diagonal(axes)
        axes.set_xlabel(f"reference {quantity} ({unit})")
        axes.set_ylabel(f"predicted {quantity} ({unit})")
        _legend(axes)
    return figure


def _property_parity(evaluations: Sequence[Evaluation]) -> Figure:
    """Predicted against reference values of a property."""
    figure, (axes,) = _panels(1)
    target = evaluations[0].target
    for colour, evaluation in zip(_colours(evaluations), evaluations, strict=True):
        known = evaluation.energy.known()
        _scatter(axes, known.label, known.mean, evaluation.name, colour)
    _diagonal(axes)
    axes.set_xlabel(f"reference {target.name} ({target.unit})")
    axes.set_ylabel(f"predicted {target.name} ({target.unit})")
    _legend(axes)
    return figure


def _shown(evaluations: Sequence[Evaluation]) -> tuple[tuple[str, str, str, float], ...]:
    """Field, name, unit and factor of the quantities that have a σ."""
    target = evaluations[0].target
    own = ("energy", target.name, target.shown_unit, target.factor)
    return (own, ("forces", "force", "meV/Å", MILLI)) if target.is_energy else (own,)


def learning_curves(history: Sequence[Mapping[str, Any]], target: Target = ENERGY) -> Figure:
    """Loss, validation errors and learning rate over the epochs of history.jsonl."""
    figure, (loss, errors, rate) = _panels(3)
    checked = [line for line in history if line.get("valid")]
    epochs = [line["epoch"] for line in checked]
    loss.plot(_epochs(history), [line["train"].get("loss", np.nan) for line in history], c="0.6")
    loss.plot(epochs, [line["valid"]["loss"] for line in checked], c=COLOURS[0])
    loss.legend(["training", "validation"], frameon=False)
    loss.set_ylabel("loss")
    _loss_scale(loss, history)
    for colour, (key, name) in zip(
        COLOURS,
        (
            ("energy_mae", f"{target.name} ({target.shown_unit})"),
            ("forces_mae", "forces (meV/Å)"),
        ),
        strict=False,
    ):
        values = [line["valid"].get(key, np.nan) for line in checked]
        if np.isfinite(values).any():
            errors.plot(epochs, values, c=colour, label=name)
            _log(errors, "y")
    errors.set_ylabel("validation MAE")
    _legend(errors)
    rate.plot(_epochs(history), [line["learning_rate"] for line in history], c=COLOURS[0])
    _log(rate, "y")
    rate.set_ylabel("learning rate")
    for axes in (loss, errors, rate):
        axes.set_xlabel("epoch")
    return figure


def error_against_spread(evaluations: Sequence[Evaluation]) -> Figure:
    """|error| against predicted σ on log axes, with the RMSE of bins of σ and the ideal line."""
    shown = _shown(evaluations)
    figure, panels = _panels(len(shown))
    for colour, evaluation in zip(_colours(evaluations), evaluations, strict=True):
        for axes, (field, _, _, factor) in zip(panels, shown, strict=True):
            known = getattr(evaluation, field).known()
            positive = (known.std > 0) & (known.error != 0)
            if not positive.any():
                continue
            std, error = known.std[positive] * factor, np.abs(known.error[positive]) * factor
            _scatter(axes, std, error, evaluation.name, colour)
            axes.plot(*_binned_rmse(std, error), "o-", c=colour, mec="white", ms=7, lw=1.5)
    for axes, (_, quantity, unit, _) in zip(panels, shown, strict=True):
        _log(axes, "x")
        _log(axes, "y")
        _diagonal(axes)
        axes.set_xlabel(f"predicted {quantity} σ ({unit})")
        axes.set_ylabel(f"|{quantity} error| and RMSE in bins ({unit})")
        _legend(axes)
    return figure


def spread_histograms(evaluations: Sequence[Evaluation]) -> Figure:
    """Distributions of the predicted σ of each set, on a log axis."""
    shown = _shown(evaluations)
    figure, panels = _panels(len(shown))
    for axes, (field, quantity, unit, factor) in zip(panels, shown, strict=True):
        spreads = [getattr(each, field).std.ravel() * factor for each in evaluations]
        positive = [values[values > 0] for values in spreads]
        joined = np.concatenate([*positive, np.zeros(0)])
        if joined.size:
            low, high = np.log10(joined.min()) - 0.05, np.log10(joined.max()) + 0.05
            bins = np.logspace(low, high, 40).tolist()
            for colour, each, values in zip(
                _colours(evaluations), evaluations, positive, strict=True
            ):
                weights = np.full(values.size, 1 / max(values.size, 1))
                axes.hist(values, bins, weights=weights, alpha=0.6, color=colour, label=each.name)
            _log(axes, "x")
        axes.set_xlabel(f"predicted σ of the {quantity} ({unit})")
        axes.set_ylabel("fraction")
        _legend(axes)
    return figure


def trajectory(
    *,
    time: Sequence[float],
    potential_energy: Sequence[float],
    temperature: Sequence[float],
    force_spread: Sequence[float],
) -> Figure:
    """A molecular dynamics run: fs, eV, K, and the largest force σ of each step in eV/Å."""
    figure, panels = _panels(3)
    energies = np.asarray(potential_energy)
    for axes, values, name, colour in zip(
        panels,
        (temperature, (energies - energies[0]) * MILLI, np.asarray(force_spread) * MILLI),
        ("temperature (K)", "potential energy − start (meV)", "largest force σ (meV/Å)"),
        COLOURS,
        strict=False,
    ):
        axes.plot(time, values, c=colour, lw=1)
        axes.set_xlabel("time (fs)")
        axes.set_ylabel(name)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Write a PNG as a whole, making its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=130, format="png")
    write_atomically(path, drawn.getvalue())
    return path


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.6 * count, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(1, count, place + 1) for place in range(count)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    return figure, panels


def _colours(evaluations: Sequence[Evaluation]) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(evaluations))]


def _centre(evaluations: Sequence[Evaluation]) -> float:
    """Mean reference energy per atom of the first set that has energies, eV."""
    for evaluation in evaluations:
        labels = evaluation.energy_per_atom.known().label
        if labels.size:
            return float(labels.mean())
    return 0.0


def _scatter(
    axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64], name: str, colour: str
) -> None:
    if x.size > _DRAWN:
        chosen = np.random.default_rng(0).choice(x.size, _DRAWN, replace=False)
        x, y = x[chosen], y[chosen]
    alpha = 0.25 if x.size > 1000 else 0.6
    axes.scatter(x, y, s=6, alpha=alpha, c=colour, linewidths=0, rasterized=True)
    axes.scatter([], [], s=20, c=colour, label=name)  # a legend entry that can be seen


def _diagonal(axes: Axes) -> None:
    low = max(axes.get_xlim()[0], axes.get_ylim()[0])
    high = min(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], c="0.2", lw=1, ls="--", zorder=3)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False)


def _epochs(history: Sequence[Mapping[str, Any]]) -> list[int]:
    return [line["epoch"] for line in history]


def _log(axes: Axes, which: Literal["x", "y"]) -> None:
    """A log scale with readable numbers, also where it spans less than a decade."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _loss_scale(axes: Axes, history: Sequence[Mapping[str, Any]]) -> None:
    """Log for losses that stay positive; a likelihood is drawn without its first, huge values."""
    values = [line["train"].get("loss", np.nan) for line in history]
    values += [line["valid"]["loss"] for line in history if line.get("valid")]
    finite = np.array([value for value in values if np.isfinite(value)])
    if not finite.size:
        return
    if finite.min() > 0:
        _log(axes, "y")
        return
    low, high = float(finite.min()), float(np.quantile(finite, 0.9))
    margin = 0.1 * max(high - low, 1e-3)
    axes.set_ylim(low - margin, high + margin)


def _binned_rmse(
    std: NDArray[np.float64], error: NDArray[np.float64], *, bins: int = 8
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Root mean squares of σ and of the error in bins of equal population."""
    parts = np.array_split(np.argsort(std), min(bins, std.size))
    x = np.array([np.sqrt(np.mean(std[part] ** 2)) for part in parts])
    y = np.array([np.sqrt(np.mean(error[part] ** 2)) for part in parts])
    return x, y
