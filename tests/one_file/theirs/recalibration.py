"""σ scaled by a quantile of the errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Lt
from scipy import special

from bayrace.calibrate.calibration import Recalibration
from bayrace.calibrate.method import Errors


@dataclass(frozen=True)
class Median:
    """σ such that a quantile of the errors is that of a Gaussian."""

    name: ClassVar[str] = "median"
    quantile: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Of the absolute errors."""

    def fit(self, errors: Errors) -> Recalibration:
        expected = special.ndtri((1 + self.quantile) / 2)
        return Recalibration(float(np.quantile(np.abs(errors.z), self.quantile)) / expected, 1)
