"""What a recalibration method is, and the errors that it is fitted to.

A method is a frozen dataclass: its fields are its options, the section `calibrate.NAME` of the
configuration, and `fit` is its verb. A file lists its methods in `METHODS`; other packages name
theirs in an entry point of the group `bayrace.recalibrations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bayrace.calibrate.calibration import Recalibration
from bayrace.calibrate.frames import bootstrap

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Errors:
    """Known errors of one quantity in units of the predicted σ, (n,) each."""

    z: Array  # (label - mean) / σ
    structure: NDArray[np.int64]  # that it is of, ascending
    scalar: bool  # an energy, whose errors may be skewed; components of vectors may not
    numbers: NDArray[np.int64] | None = None  # of its atom; None where it is of no atom
    composition: Mapping[int, Array] | None = None  # of its structure: parts of all its atoms
    level: Array | None = None  # σ of the energy per atom, eV, or of the atom's force, eV/Å


class RecalibrationMethod(Protocol):
    """A way to make σ agree with errors; its documentation's first line is shown in lists."""

    name: ClassVar[str]

    def fit(self, errors: Errors) -> Recalibration:
        """What σ of this quantity is changed to; ValueError where the errors do not allow it."""
        ...


def with_interval(
    found: Recalibration, errors: Errors, estimate: Callable[[Array], float]
) -> Recalibration:
    """With the interval of its factor, by the estimate on structures that are drawn anew."""
    return replace(found, interval=bootstrap(estimate, errors.z, errors.structure))
