"""Isotonic recalibration (Kuleshov 2018): the distribution of errors that was seen, not a Gaussian.

Kuleshov regresses the observed frequency of PIT values below u on u, monotonically. On the data of
the fit that regression is their empirical distribution function, so it is taken directly, in
z = error / σ where it keeps its digits, and thinned to knots that are equidistant in normal scores.
The new σ is the root mean square of that distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bayrace.calibrate.calibration import Recalibration
from bayrace.calibrate.method import Errors, with_interval
from bayrace.calibrate.shapes import mirrored, root_mean_square, shape_of, upper_tail

Array = NDArray[np.float64]

MINIMUM = 20
_KNOTS = 101


@dataclass(frozen=True)
class Isotonic:
    """The distribution of errors that was seen, instead of a Gaussian."""

    name: ClassVar[str] = "isotonic"

    def fit(self, errors: Errors) -> Recalibration:
        """Symmetric for what has a direction."""
        return with_interval(fit(errors.z, symmetric=not errors.scalar), errors, root_mean_square)


def fit(z: Array, *, symmetric: bool) -> Recalibration:
    """Recalibrate by errors in units of σ, z (n,) = (label - mean) / σ.

    `symmetric` counts every z also as -z, which forces need to turn with their structure.
    """
    if z.size < MINIMUM:
        raise ValueError(
            f"{z.size} errors for an isotonic calibration, which needs {MINIMUM}; give more "
            "frames, or use --method scale"
        )
    factor = root_mean_square(z)
    knots = _even(np.abs(z), factor) if symmetric else _skewed(z, factor)
    return Recalibration(factor, z.size, shape_of(*knots, scale=factor))


def _skewed(z: Array, scale: float) -> tuple[Array, Array]:
    count = z.size
    limit = float(special.ndtri(count / (count + 1)))
    level = special.ndtr(np.linspace(-limit, limit, _knots(count)))
    place = np.interp(level * (count + 1), np.arange(1, count + 1), np.sort(z))
    at, p = _merged(place, level)
    left = 1 / (count + 1)
    above, above_p = upper_tail(float(at[-1]), left, scale=scale)
    below, below_p = upper_tail(float(-at[0]), left, scale=scale)
    return (
        np.concatenate([-below[::-1], at, above]),
        np.concatenate([1 - below_p[::-1], p, above_p]),
    )


def _even(size: Array, scale: float) -> tuple[Array, Array]:
    count = size.size
    limit = float(special.ndtri((1 + count / (count + 1)) / 2))
    level = 2 * special.ndtr(np.linspace(0, limit, _knots(count) // 2 + 1)[1:]) - 1
    place = np.interp(level * (count + 1), np.arange(count + 1), np.sort([0.0, *size]))
    return mirrored(*_merged(place, level), scale=scale)


def _knots(count: int) -> int:
    """Fewer for few errors, which would else be followed one by one."""
    return int(np.clip(2 * np.sqrt(count), 9, _KNOTS))


def _merged(place: Array, level: Array) -> tuple[Array, Array]:
    """Knots at one place, as symmetry makes them, become one of their mean level."""
    unique, inverse, counts = np.unique(place, return_inverse=True, return_counts=True)
    return unique, np.bincount(inverse, weights=level) / counts


METHODS = (Isotonic,)
