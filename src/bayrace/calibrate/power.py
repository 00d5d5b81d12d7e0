"""σ to a power: for potentials whose σ rises where their errors rise, but not as much.

Far from the training data the members of an ensemble agree more than they are right, close to it
the noise that they learnt may be more than their errors: on data of both kinds no single factor
serves. With z = error / σ and r = σ / pivot, the σ of maximum likelihood for Gaussian errors is
a·σ·r^(b-1). The pivot is the geometric mean of σ. Then Σ log r = 0, the likelihood of b is greatest
where ⟨z² r^(2-2b)⟩, a convex function of b, is least, and a² is that least value. Errors then have
the shape that was seen, as by `isotonic`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from bayrace.calibrate import isotonic
from bayrace.calibrate.calibration import Recalibration
from bayrace.calibrate.method import Errors
from bayrace.calibrate.scale import Scale

Array = NDArray[np.float64]

_LARGEST = 4.0  # power that any data may ask for


@dataclass(frozen=True)
class Power:
    """σ of forces to a power, where one factor cannot serve cold and hot frames."""

    name: ClassVar[str] = "power"

    def fit(self, errors: Errors) -> Recalibration:
        """Of forces; other quantities have one factor."""
        if errors.level is None or errors.scalar:
            return Scale().fit(errors)
        return fit(errors.z, errors.level)


def fit(z: Array, level: Array) -> Recalibration:
    """Recalibrate by errors in units of σ, z (n,), of atoms whose σ is `level` (n,), in eV/Å."""
    pivot = float(np.exp(np.mean(np.log(level))))
    log_ratio = np.log(level / pivot)

    def log_mean_square(power: float) -> float:
        return float(np.log(np.mean(z**2 * np.exp(2 * (1 - power) * log_ratio))))

    best = optimize.minimize_scalar(log_mean_square, bounds=(0.0, _LARGEST), method="bounded")
    power = float(best.x)
    rest = isotonic.fit(z * np.exp((1 - power) * log_ratio), symmetric=True)
    return Recalibration(rest.factor, z.size, rest.shape, power=power, pivot=pivot)


METHODS = (Power,)
