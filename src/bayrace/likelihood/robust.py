"""The scale of errors that no single one moves, and shares of two variances by it.

Huber's proposal 2 (1964) takes

    s² = ⟨min(z², k² s²)⟩ / b,    b = ⟨min(x², k²)⟩ of a standard normal x,

the root mean square but for errors beyond k s, which count as k s. With k = 2.5 Gaussian errors
give the same scale with the same scatter; one error of 40 σ among fifty changes it by 6 %, among
twenty by 19 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LIMIT = 2.5  # k
_STEPS = 1000  # at most; it converges like 0.08ⁿ for Gaussian errors
_PRIOR_ERRORS = 30  # by which the scale of an element leans on that of all
_FREEDOM = 4.0  # of Student's t, by whose likelihood shares are judged
_SHARES = (0.001, 0.003, 0.01, 0.03, *(k / 20 for k in range(1, 20)), 0.99)


def robust_scale(z: Array) -> float:
    """Huber's scale of errors z (n,), the standard deviation where they are Gaussian.

    The root mean square where five of six errors are exactly 0, which leaves no such scale.
    """
    start = math.sqrt(float(np.mean(z**2)))
    square = z**2
    variance = start**2
    for _ in range(_STEPS):
        before = variance
        variance = float(np.mean(np.minimum(square, _LIMIT**2 * variance))) / _SHARE
        if abs(variance - before) <= 1e-13 * before:
            break
    return math.sqrt(variance) if variance > 1e-12 * start**2 else start


def leaning(own: float, common: float, *, count: int) -> float:
    """The scale of an element with `count` errors of its own: it leans on that of all, in logs."""
    part = count / (count + _PRIOR_ERRORS)
    return common * math.exp(part * math.log(own / common))


class Shares(NamedTuple):
    """Factors of two variances whose sum explains errors."""

    noise: float  # of the one that is given, 0 where none is
    ignorance: float  # of the other, whose scale is unknown


def shares(square: Array, noise: Array, shape: Array, *, count: int) -> Shares:
    """Factors g, c of the variances g · noise + c · shape of squared errors, all (n,).

    Labels of deterministic calculations have no noise to speak of, and what a network has learnt to
    call noise does not rise where it knows nothing. So `shape` explains as much as the errors do
    not contradict: the share of the noise is the least within half a unit of log likelihood of the
    best, errors counting as `count` independent ones. Student's t with four degrees of freedom
    judges, the scale is Huber's: single errors decide nothing.
    """
    level = float(noise.mean())
    relative = shape / shape.mean()
    found = [judged(square, (1 - w) * relative + w * (noise / level)) for w in _SHARES if level > 0]
    if not found:
        return Shares(0.0, judged(square, relative)[1] / float(shape.mean()))
    share = least_within(_SHARES, [loss for loss, _ in found], count=count)
    scale = found[_SHARES.index(share)][1]
    return Shares(scale * share / level, scale * (1 - share) / float(shape.mean()))


def least_within(values: Sequence[float], losses: Sequence[float], *, count: int) -> float:
    """The first of the values, ascending, that errors do not contradict.

    `losses` are -2 log likelihoods per error, of which `count` are independent: within half a unit
    of the log likelihood of the best.
    """
    limit = min(losses) + 1 / count
    return next(value for value, loss in zip(values, losses, strict=True) if loss <= limit)


def judged(square: Array, variance: Array) -> tuple[float, float]:
    """-2 log likelihood per squared error, without constants, and the factor of the variance."""
    scale = robust_scale(np.sqrt(square / variance)) ** 2
    if not scale > 0:
        return math.inf, 0.0
    total = scale * variance
    loss = np.log(total) + (_FREEDOM + 1) * np.log1p(square / (_FREEDOM * total))
    return float(loss.mean()), scale


def _normal_share(limit: float) -> float:
    """b: the mean of min(x², k²) of a standard normal."""
    outside = math.erfc(limit / math.sqrt(2))
    density = math.exp(-(limit**2) / 2) / math.sqrt(2 * math.pi)
    return 1 - outside - 2 * limit * density + limit**2 * outside


_SHARE = _normal_share(_LIMIT)
