"""Split-conformal intervals: quantiles of |z| with the correction for finitely many errors.

With n errors that are exchangeable with a new one, mean ± σ·|z|_(k), k = ⌈(n + 1) p⌉, holds the new
label with a probability of at least p, whatever the distribution. Levels above n/(n + 1) would need
infinite intervals; a Gaussian tail gives finite ones there, without that guarantee. The σ itself is
scaled as by `scale`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayrace.calibrate.calibration import Recalibration
from bayrace.calibrate.shapes import mirrored, root_mean_square, shape_of

Array = NDArray[np.float64]

MINIMUM = 20
_LEVELS = np.concatenate([np.arange(1, 100) / 100, [0.995, 0.998, 0.999, 0.9995, 0.9999]])
_FEW = 200  # errors up to which every one is a knot
_APART = 1e-9  # of knots where errors are equal; upwards, which keeps the guarantee


def fit(z: Array) -> Recalibration:
    """Recalibrate by errors in units of σ, z (n,); intervals are symmetric about the mean."""
    count = z.size
    if count < MINIMUM:
        raise ValueError(
            f"{count} errors for a conformal calibration, which needs {MINIMUM}; give more frames, "
            "or use --method scale"
        )
    scale = root_mean_square(z)
    level = np.arange(1, count) / (count + 1) if count <= _FEW else _LEVELS
    level = level[level < count / (count + 1)]
    # One rank above ⌈(n + 1) p⌉ - 1, so that straight lines between knots stay conservative.
    rank = np.minimum(np.floor((count + 1) * level + _APART).astype(int) + 1, count)
    size = np.sort(np.abs(z))[rank - 1] + _APART * np.arange(level.size)
    return Recalibration(scale, count, shape_of(*mirrored(size, level, scale=scale), scale=scale))
