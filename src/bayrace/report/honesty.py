"""Whether σ is right, by two numbers that may disagree: RMSE over σ, and coverage.

The first hangs on the largest errors and the largest σ, the second, the share of references in
their 90 % intervals, on what is usual. Where a few σ are far too large and most too small, σ is
too large on average and its intervals are too narrow, both at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bayrace.evaluate.judged import LEVEL, Judged, Quantity
from bayrace.report.document import Finding, short

TOLERATED = 0.04  # of coverage, beyond what chance explains
TOLERATED_RATIO = 1.2  # of RMSE and σ, likewise
FEW = 30  # structures, below which percentages mean little

Size = Literal["too small", "right", "too large"]
Width = Literal["too narrow", "right", "too wide"]
_SIZES: Mapping[int, Size] = {-1: "too small", 0: "right", 1: "too large"}
_WIDTHS: Mapping[int, Width] = {-1: "too narrow", 0: "right", 1: "too wide"}
_SHARES = {"too narrow": "too few", "right": "as should be", "too wide": "too many"}
_UNEVEN = {
    ("too large", "too narrow"): " So a few σ are far too large and others too small.",
    ("too small", "too wide"): " So a few errors are far larger than their σ, most are smaller.",
}


@dataclass(frozen=True)
class Honesty:
    """How one quantity's σ compares with its errors."""

    title: str
    inside: float  # share of references in their 90 % interval
    ratio: float  # RMSE over σ
    size: Size  # of σ, by the ratio
    intervals: Width  # by the share

    @property
    def blind(self) -> bool:
        """Errors are larger than σ says, on average or for too many."""
        return self.size == "too small" or self.intervals == "too narrow"


def judge(title: str, quantity: Quantity) -> Honesty:
    """Judge both numbers against chance; beside one that is beyond it, tolerance is enough."""
    inside = float(np.mean(quantity.inside))
    ratio = quantity.rmse / float(np.sqrt(np.mean(quantity.std**2)))
    structures = np.unique(quantity.frame).size
    share_error = (inside - LEVEL) / TOLERATED  # beyond ±1: not tolerated
    size_error = -math.log(max(ratio, 1e-300)) / math.log(
        TOLERATED_RATIO
    )  # positive: σ too large, likewise
    share_limit = 1 + 2 * _chance(quantity) / TOLERATED
    size_limit = math.log(TOLERATED_RATIO + 2 / math.sqrt(2 * structures))
    size_limit /= math.log(TOLERATED_RATIO)
    wide, large = _beyond(share_error, share_limit), _beyond(size_error, size_limit)
    if not wide and _beyond(share_error, 1.0) == large:
        wide = large
    elif not large and _beyond(size_error, 1.0) == wide:
        large = wide
    return Honesty(title, inside, ratio, _SIZES[large], _WIDTHS[wide])


def _beyond(value: float, limit: float) -> int:
    """-1 below −limit, 1 above limit, else 0."""
    return int(value > limit) - int(value < -limit)


def _chance(quantity: Quantity) -> float:
    """Standard error of the coverage; components of one structure's forces are not independent."""
    inside = quantity.inside.astype(float)
    _, place = np.unique(quantity.frame, return_inverse=True)
    structures = int(place.max()) + 1
    if structures < FEW:
        return math.sqrt(LEVEL * (1 - LEVEL) / structures)
    surplus = np.bincount(place, weights=inside - inside.mean())  # of each structure
    between = math.sqrt(float(np.sum(surplus**2))) / inside.size
    return max(between, math.sqrt(LEVEL * (1 - LEVEL) / inside.size))


def honesty(sets: Sequence[Judged]) -> Iterator[Finding]:
    """One sentence for each set, or two where σ of energies and forces err differently."""
    for each in sets:
        states: dict[tuple[str, str], list[Honesty]] = {}
        name = "energies" if each.target.is_energy else f"{each.target.name} values"
        for title, quantity in ((name, each.energy), ("forces", each.forces)):
            if quantity.uncertain:
                judged = judge(title, quantity)
                states.setdefault((judged.size, judged.intervals), []).append(judged)
        for alike in states.values():
            yield _sentence(each, alike)


def _sentence(each: Judged, alike: Sequence[Honesty]) -> Finding:
    """What the two numbers say of quantities for which they say the same."""
    first = alike[0]
    titles = " and ".join(one.title for one in alike)
    headline = f"σ of the {titles} of “{each.name}” {_state(first)}."
    inside = " and ".join(f"{100 * one.inside:.3g} % of the {one.title}" for one in alike)
    ratios = " and ".join(short(one.ratio) for one in alike)
    text = (
        f"{inside} are in their 90 % intervals ({_SHARES[first.intervals]}); the RMSE is {ratios} "
        f"times the predicted σ (σ {first.size}).{_UNEVEN.get((first.size, first.intervals), '')}"
    )
    if first.size == first.intervals == "right":
        return Finding("good", headline, text)
    if not first.blind:
        advice = " Recalibrating (bayrace calibrate) makes the intervals narrower."
        plain = each.role == "ood" or each.recalibrated
        return Finding("caution", headline, text if plain else text + advice)
    severe = any(one.inside < 0.7 or one.ratio > 2 for one in alike)
    return Finding("bad" if severe else "caution", headline, text + _remedy(each))


def _state(found: Honesty) -> str:
    """What both numbers say in one, or what each says where they differ."""
    match found.size, found.intervals:
        case "right", "right":
            return "is honest"
        case ("too small", "too narrow") | ("too large", "too wide"):
            return f"is {found.size}"
        case ("too large", "too narrow") | ("too small", "too wide"):
            joint = "and yet"
        case _:
            joint = "but"
    return f"is {found.size} on average, {joint} its 90 % intervals are {found.intervals}"


def _remedy(each: Judged) -> str:
    if each.role == "ood":
        return " Do not trust σ there; add such structures to the training data."
    if each.recalibrated:
        return " The recalibration was fitted to easier structures."
    return " Recalibrate on validation data: bayrace calibrate."
