"""The scale of a variance that stands beside a known one: e ~ N(0, a + α² s), α by likelihood.

What the noise a explains already is not explained again by α² s, so noise is never counted twice.
Without noise the answer is α² = ⟨e²/s⟩.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_Loss = Callable[[float], float]

_STEPS = 121  # of the search in log α², before it is refined
_RANGE = 1e-12  # of α², below the largest that any error asks for


class Scale(NamedTuple):
    """The scale found, and how likely the errors are with it."""

    alpha: float
    loss: float  # -2 log likelihood per error, without log 2π
    bounded: bool  # the noise alone explains the errors; α is only what they do not contradict


def total_scale(error: Array, noise_variance: Array, shape: Array, *, count: int) -> Scale:
    """α of the highest likelihood of errors (n,), noise variances a (n,) and shapes s > 0 (n,).

    `count` is how many of the errors are independent. Where the noise explains more than there is,
    α = 0 would be most likely, and the potential would know no unknown structure any more; α is
    then the largest that the errors allow, half a unit of log likelihood below the best.
    """
    square = error**2
    largest = float(np.max(square / shape))
    if not (math.isfinite(largest) and largest > 0):
        return Scale(0.0, math.inf, bounded=False)

    def loss(variance: float) -> float:
        total = noise_variance + variance * shape
        return float(np.mean(np.log(total) + square / total))

    if not noise_variance.any():
        best = float(np.mean(square / shape))
        return Scale(math.sqrt(best), loss(best), bounded=False)
    best = _minimum(loss, largest)  # beyond `largest` every term of the loss rises
    if (noise_variance > 0).all() and loss(0.0) <= loss(best):
        allowed = loss(0.0) + 1 / count
        limit = _crossing(lambda variance: loss(variance) - allowed, largest)
        return Scale(math.sqrt(limit), loss(limit), bounded=True)
    return Scale(math.sqrt(best), loss(best), bounded=False)


def _minimum(loss: _Loss, largest: float) -> float:
    """The place of the least loss, by a grid and then by intervals."""
    from scipy.optimize import minimize_scalar  # 0.2 s, not for every command

    grid = np.log(largest) + np.linspace(math.log(_RANGE), 0.0, _STEPS)
    place = int(np.argmin([loss(math.exp(point)) for point in grid]))
    ends = (float(grid[max(place - 1, 0)]), float(grid[min(place + 1, _STEPS - 1)]))
    found = minimize_scalar(lambda point: loss(math.exp(point)), bounds=ends, method="bounded")
    return math.exp(min((float(found.x), float(grid[place])), key=lambda at: loss(math.exp(at))))


def _crossing(excess: _Loss, largest: float) -> float:
    """Where the excess passes zero from below, or the end of the range."""
    from scipy.optimize import brentq

    if excess(largest) <= 0:
        return largest
    low = math.log(largest * _RANGE)
    if excess(math.exp(low)) >= 0:
        return math.exp(low)
    return math.exp(float(brentq(lambda point: excess(math.exp(point)), low, math.log(largest))))
