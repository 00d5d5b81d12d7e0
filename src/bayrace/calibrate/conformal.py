"""Split-conformal intervals: quantiles of |z| with the correction for finitely many structures.

With G structures that are exchangeable with a new one, mean ± σ·q holds a label of the new one,
taken at random, with a probability of at least p, whatever the distribution, if q is the p-quantile
of |z| where every structure has the weight 1/(G + 1), its own errors share it evenly, and the rest
is at infinity (Lee, Barber and Willett 2023). Errors of one structure need not be independent. With
one error per structure q is the usual |z|_(k), k = ⌈(G + 1) p⌉. Levels above G/(G + 1) would need
infinite intervals; a Gaussian tail gives finite ones there, without that guarantee. The σ itself is
scaled to the root mean square of the errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bayrace.calibrate.calibration import Recalibration
from bayrace.calibrate.method import Errors, with_interval
from bayrace.calibrate.shapes import mirrored, root_mean_square, shape_of

Array = NDArray[np.float64]

MINIMUM = 20
_LEVELS = np.concatenate([np.arange(1, 100) / 100, [0.995, 0.998, 0.999, 0.9995, 0.9999]])
_FEW = 200  # errors up to which every one is a knot
_APART = 1e-9  # of knots where errors are equal; upwards, which keeps the guarantee


@dataclass(frozen=True)
class Conformal:
    """Intervals that hold a label at least as often as they claim."""

    name: ClassVar[str] = "conformal"

    def fit(self, errors: Errors) -> Recalibration:
        """By structures."""
        return with_interval(fit(errors.z, errors.structure), errors, root_mean_square)


def fit(z: Array, structure: NDArray[np.int64] | None = None) -> Recalibration:
    """Recalibrate by errors in units of σ, z (n,); intervals are symmetric about the mean.

    `structure` (n,) tells the structure of each error; None: each is of its own.
    """
    structure = np.arange(z.size) if structure is None else structure
    _, place, sizes = np.unique(structure, return_inverse=True, return_counts=True)
    count = sizes.size
    if count < MINIMUM:
        raise ValueError(
            f"errors of {count} structures for a conformal calibration, which needs {MINIMUM}; "
            "give more frames, or use --method scale"
        )
    scale = root_mean_square(z)
    level = np.arange(1, count) / (count + 1) if z.size <= _FEW else _LEVELS
    level = level[level < count / (count + 1)]
    order = np.argsort(np.abs(z), kind="stable")
    below = np.cumsum(1 / ((count + 1) * sizes[place][order]))  # probability up to each error
    # The first error above the level, so that straight lines between knots stay conservative.
    rank = np.minimum(np.searchsorted(below, level + _APART, side="right"), z.size - 1)
    size = np.abs(z)[order][rank] + _APART * np.arange(level.size)
    knots = mirrored(size, level, scale=scale)
    return Recalibration(scale, z.size, shape_of(*knots, scale=scale))


METHODS = (Conformal,)
