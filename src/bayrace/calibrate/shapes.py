"""Knots of distributions: tails beyond the data, mirroring, and the scale that makes σ right."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bayrace.core.prediction import ErrorDistribution

Array = NDArray[np.float64]

_REMAINING = np.array([1 / 4, 1 / 16, 1 / 64, 1 / 1024])  # of a tail's probability, at its knots


def upper_tail(start: float, probability: float, *, scale: float) -> tuple[Array, Array]:
    """Knots z and p above `start`, where a `probability` remains that no error was seen to fill.

    It falls like the tail of a Gaussian of this scale, cut where 1/1024 of it is left.
    """
    z = -special.ndtri(probability * _REMAINING) + special.ndtri(probability)
    remaining = probability * np.array([*_REMAINING[:-1], 0.0])
    return start + scale * z, 1 - remaining


def mirrored(size: Array, level: Array, *, scale: float) -> tuple[Array, Array]:
    """Knots z and p of a symmetric distribution with P(|z| < size) = level, ascending below 1."""
    positive = size > 0
    size, level = size[positive], level[positive]
    tail, tail_p = upper_tail(float(size[-1]), (1 - float(level[-1])) / 2, scale=scale)
    z = np.concatenate([size, tail])
    p = np.concatenate([(1 + level) / 2, tail_p])
    return np.concatenate([-z[::-1], [0.0], z]), np.concatenate([1 - p[::-1], [0.5], p])


def shape_of(z: Array, p: Array, *, scale: float) -> ErrorDistribution:
    """The distribution with these knots in units of a scale."""
    return ErrorDistribution(tuple((z / scale).tolist()), tuple(p.tolist()))


def root_mean_square(z: Array) -> float:
    """√⟨z²⟩, the factor that makes σ the root mean square of the errors.

    Taken about the predicted mean, which does not move; without a bias it is that of the variance.
    Where it is 0 no scale can be found.
    """
    value = math.sqrt(float(np.mean(z**2)))
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"errors in units of σ have the root mean square {value}; calibrate on frames whose "
            "labels are not the model's own predictions"
        )
    return value
