"""Are the uncertainties right? Errors against σ, calibration curves, intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayrace.evaluate.judged import Judged, Quantity
from bayrace.evaluate.metrics.calibration import LEVELS, calibration_error, central_mass, coverage
from bayrace.report.curves import binned_rmse, folded_normal, sampling_band, thinned
from bayrace.report.document import Axis, Mark, Panel
from bayrace.report.panels.accuracy import MILLI, drawn_note, point_names, share

Shown = tuple[str, str, str, float]
BANDS = ((0.005, 0.995, "99 % of errors"), (0.05, 0.95, "90 %"), (0.25, 0.75, "50 %"))
BEFORE = ", before recalibration"
TRACED = 250  # structures of an interval panel


def quantities(sets: Sequence[Judged]) -> tuple[Shown, ...]:
    """Key, name, unit and factor to it, of what these sets have σ of."""
    target = sets[0].target
    if not target.is_energy:
        return (("energy", target.name, target.shown_unit, target.factor),)
    return (("energy", "energies", "meV", MILLI), ("forces", "forces", "meV/Å", MILLI))


def spread_panels(sets: Sequence[Judged]) -> list[Panel]:
    """|error| against predicted σ."""
    return [
        _spread(sets, shown)
        for shown in quantities(sets)
        if any(getattr(each, shown[0]).uncertain for each in sets)
    ]


def calibration_panels(sets: Sequence[Judged]) -> list[Panel]:
    """Observed against expected coverage, and the calibration errors as bars."""
    panels = [
        _calibration(sets, key, title)
        for key, title, *_ in quantities(sets)
        if any(getattr(each, key).uncertain for each in sets)
    ]
    return [*panels, _bars(sets)] if panels else []


def interval_panels(sets: Sequence[Judged]) -> list[Panel]:
    """Energies of each set in their 90 % intervals."""
    return [
        _intervals(each, colour, number=colour)
        for colour, each in enumerate(sets, start=1)
        if each.energy.uncertain
    ]


def _spread(sets: Sequence[Judged], what: Shown) -> Panel:
    key, title, unit, factor = what
    shown = [
        (colour, each, getattr(each, key))
        for colour, each in enumerate(sets, start=1)
        if getattr(each, key).uncertain
    ]
    sigma = factor * np.concatenate([q.std[q.std > 0] for _, _, q in shown])
    errors = factor * np.abs(np.concatenate([q.error[q.std > 0] for _, _, q in shown]))
    low, high = float(sigma.min()) / 1.15, float(sigma.max()) * 1.15
    marks = _bands(low, high)
    marks.append(Mark("line", "RMSE = σ", x=[low, high], y=[low, high], style="dashed", fit=False))
    for colour, each, quantity in shown:
        chosen = thinned(quantity.size, share(sets, key))
        chosen = chosen[(quantity.std[chosen] > 0) & (quantity.error[chosen] != 0)]
        std, error = factor * quantity.std, factor * np.abs(quantity.error)
        names = point_names(each, quantity, chosen)
        marks.append(Mark("points", each.name, colour, x=std[chosen], y=error[chosen], names=names))
        marks.append(_binned(each, quantity, colour, factor))
    top = float(errors.max())
    bottom = max(float(np.quantile(errors, 0.01)), top * 1e-5, 1e-9)
    return Panel(
        f"spread-{key}",
        f"Errors of the {title} against σ",
        "Shaded: where 50, 90 and 99 % of the errors of a normal distribution with that σ lie. "
        "Large dots: RMSE of the errors in bins of σ; on the dashed line σ is right, above it "
        "the errors are larger than predicted. Errors below the axis are not drawn."
        + drawn_note(sets, key),
        Axis("predicted σ", unit, "log", low, high),
        Axis("|error|", unit, "log", bottom / 1.5, top * 1.5),
        marks,
    )


def _bands(low: float, high: float) -> list[Mark]:
    ends = np.array([low, high])
    return [
        Mark(
            "band",
            x=ends,
            low=ends * folded_normal(lower),
            high=ends * folded_normal(upper),
            names=[text],
            fit=False,
        )
        for lower, upper, text in BANDS
    ]


def _binned(each: Judged, quantity: Quantity, colour: int, factor: float) -> Mark:
    positive = quantity.std > 0
    x, y = binned_rmse(factor * quantity.std[positive], factor * quantity.error[positive])
    names = [f"{each.name}, RMSE of a bin"] * x.size
    return Mark("line", "", colour, x=x, y=y, style="dots", names=names, fit=False)


def _calibration(sets: Sequence[Judged], key: str, title: str) -> Panel:
    first = next(each for each in sets if getattr(each, key).uncertain)
    low, high = sampling_band(len(first.frames))
    marks = [
        Mark("band", x=100 * LEVELS, low=100 * low, high=100 * high, names=["chance"]),
        Mark("line", "ideal", x=[0, 100], y=[0, 100], style="dashed"),
    ]
    told = False
    for colour, each in enumerate(sets, start=1):
        raw: Quantity | None = getattr(each, f"raw_{key}")
        if raw is not None and raw.uncertain:
            name = "" if told else BEFORE.removeprefix(", ")  # of every set, in its colour
            marks.append(_curve(raw, name, colour, before=True))
            told = True
        quantity: Quantity = getattr(each, key)
        if quantity.uncertain:
            marks.append(_curve(quantity, each.name, colour, before=False))
    return Panel(
        f"calibration-{key}",
        f"Calibration of the {title}",
        "Share of the reference values inside the central interval of each probability. Below the "
        "dashed line σ is too small, above it too large. Shaded: where chance leaves 95 % of the "
        f"curves of right σ, given the {len(first.frames)} structures of “{first.name}”.",
        Axis("expected coverage", "%", low=0, high=100),
        Axis("observed coverage", "%", low=0, high=100),
        marks,
        square=True,
    )


def _curve(quantity: Quantity, name: str, colour: int, *, before: bool) -> Mark:
    x = np.concatenate([[0.0], 100 * LEVELS, [100.0]])
    y = np.concatenate([[0.0], 100 * coverage(central_mass(quantity.pit), LEVELS), [100.0]])
    return Mark("line", name, colour, x=x, y=y, style="faint" if before else "")


def _bars(sets: Sequence[Judged]) -> Panel:
    marks = []
    for colour, each in enumerate(sets, start=1):
        for key, title, *_ in quantities(sets):
            for when, quantity in ((BEFORE, getattr(each, f"raw_{key}")), ("", getattr(each, key))):
                if quantity is not None and quantity.uncertain:
                    value = calibration_error(central_mass(quantity.pit))
                    name = f"{each.name}, {title}{when}"
                    marks.append(_bar(value, name, colour, before=bool(when)))
    pale = " Pale: before recalibration." if any(each.recalibrated for each in sets) else ""
    return Panel(
        "calibration-error",
        "Calibration error",
        "Mean over probabilities 1 … 99 % of (observed − expected coverage)²; 0 is perfect, 1/3 is "
        "what σ = 0 or σ = ∞ give." + pale,
        Axis("calibration error", low=0),
        Axis("", scale="names"),
        marks,
        wide=True,
    )


def _bar(value: float, name: str, colour: int, *, before: bool) -> Mark:
    return Mark("columns", "", colour, y=[value], names=[name], style="faint" if before else "")


def _intervals(each: Judged, colour: int, *, number: int) -> Panel:
    energy, target = each.energy, each.target
    chosen = thinned(energy.size, TRACED)
    std = energy.std[chosen]
    rank = np.empty(chosen.size)
    rank[np.argsort(std, kind="stable")] = np.arange(1, chosen.size + 1)
    mean = energy.mean[chosen]
    share_inside = 100 * float(np.mean(energy.inside))
    part = "" if chosen.size == energy.size else f" {chosen.size} of {energy.size} are drawn."
    mark = Mark(
        "intervals",
        each.name,
        colour,
        x=rank,
        y=target.factor * (energy.label[chosen] - mean),
        low=target.factor * (energy.low[chosen] - mean),
        high=target.factor * (energy.high[chosen] - mean),
        names=point_names(each, energy, chosen),
        other_x=np.arange(1.0, chosen.size + 1),
    )
    zero = Mark("line", x=[0, chosen.size + 1], y=[0, 0], style="dashed", fit=False)
    return Panel(
        f"intervals-{number}",
        f"90 % intervals of the {target.name}: {each.name}",
        f"Bars: predicted intervals, relative to the prediction. Dots: reference values, crosses "
        f"where they fall outside. {share_inside:.0f} % lie inside.{part}",
        Axis("structure", low=0, high=chosen.size + 1),
        Axis("reference − prediction", target.shown_unit),
        [zero, mark],
        orders=("sorted by σ", "file order"),
        wide=True,
    )
