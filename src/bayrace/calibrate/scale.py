"""σ scaling: one factor, or one per element, of maximum likelihood for Gaussian errors.

With z = error / σ, the likelihood of a factor s is greatest at s² = ⟨z²⟩.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayrace.calibrate.calibration import Recalibration
from bayrace.calibrate.shapes import root_mean_square

Array = NDArray[np.float64]


def fit(z: Array, *, numbers: NDArray[np.int64] | None = None) -> Recalibration:
    """Recalibrate by errors in units of σ, z (n,); `numbers` (n,) gives each element its factor."""
    elements = () if numbers is None else np.unique(numbers)
    return Recalibration(
        factor=root_mean_square(z),
        count=z.size,
        by_element={int(number): root_mean_square(z[numbers == number]) for number in elements},
    )
