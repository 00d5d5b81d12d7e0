"""Whether predicted distributions hold the labels as often as they claim.

All starts from the mass of a label: the probability of the smallest central interval (or, for a
vector, ellipsoid) of the prediction that holds it. It is uniform in 0..1 where the prediction is
calibrated, near 1 where σ is too small and near 0 where σ is too large.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

LEVELS: Array = np.arange(1, 100) / 100
"""Levels p of the calibration error."""

SHOWN_LEVELS = (0.5, 0.68, 0.9, 0.95, 0.99)
"""Levels whose coverage is reported."""

SATURATED = 199 / 600
"""Calibration error of σ = 0 and of σ = ∞: Σ_{k=1}^{99} (k/100)² / 99, 1/3 for dense levels."""


def central_mass(pit: Array) -> Array:
    """|2u - 1| of PIT values u, of any shape."""
    return np.abs(2 * pit - 1)


def ellipsoid_mass(squared: Array, *, dimension: int = 3) -> Array:
    """χ² probability of squared Mahalanobis distances of vectors of a dimension."""
    return np.asarray(stats.chi2.cdf(squared, dimension), dtype=np.float64)


def coverage(mass: Array, levels: Array) -> Array:
    """Fraction of labels inside the region of each level, (levels,)."""
    ordered = np.sort(_checked(mass))
    return np.searchsorted(ordered, levels, side="right") / ordered.size


def calibration_error(mass: Array) -> float:
    """CE: mean square of coverage(p) - p over p = 0.01..0.99; 0 is perfect, 199/600 the worst.

    Labels that are all outside, or all inside, give 199/600. With n independent labels perfect
    calibration gives about 1/(6 n).
    """
    return float(np.mean((coverage(mass, LEVELS) - LEVELS) ** 2))


def miscalibration_area(mass: Array) -> float:
    """Area between the coverage and the diagonal, ∫ |coverage(p) - p| dp; ½ when saturated."""
    edges = np.concatenate([[0.0], np.sort(_checked(mass)), [1.0]])
    height = np.arange(edges.size - 1) / (edges.size - 2)  # coverage between successive edges
    left, right = edges[:-1] - height, edges[1:] - height
    crossing = (left < 0) & (right > 0)
    plain = np.abs(right**2 - left**2) / 2
    return float(np.sum(np.where(crossing, (right**2 + left**2) / 2, plain)))


def shown_coverage(mass: Array) -> dict[float, float]:
    """Coverage at 50, 68, 90, 95 and 99 %."""
    found = coverage(mass, np.array(SHOWN_LEVELS))
    return dict(zip(SHOWN_LEVELS, found.tolist(), strict=True))


def ence(error: Array, std: Array, *, bins: int = 20) -> float:
    """Expected normalised calibration error: mean over bins of |σ - RMSE| / σ, root mean squares.

    Bins hold equally many numbers of similar σ; there are fewer where numbers are few.
    """
    error, std = _checked(error), _checked(std)
    parts = np.array_split(np.argsort(std, kind="stable"), min(bins, std.size))
    sigma = np.array([np.sqrt(np.mean(std[part] ** 2)) for part in parts])
    rmse = np.array([np.sqrt(np.mean(error[part] ** 2)) for part in parts])
    if (sigma == 0).any():
        raise ValueError("σ = 0 in a whole bin: its relative error has no value; leave these out")
    return float(np.mean(np.abs(sigma - rmse) / sigma))


def sharpness(std: Array) -> float:
    """Root mean square of the predicted σ: what the RMSE is if they are right."""
    return float(np.sqrt(np.mean(_checked(std) ** 2)))


def _checked(values: Array) -> Array:
    if values.size == 0:
        raise ValueError("no numbers to judge; give frames with labels")
    if np.isnan(values).any():
        raise ValueError(f"{int(np.isnan(values).sum())} of {values.size} numbers are nan")
    return values.ravel()
