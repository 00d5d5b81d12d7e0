"""All metrics of one quantity's uncertainties in one value, as evaluations report them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayrace.evaluate.metrics.calibration import (
    calibration_error,
    central_mass,
    ellipsoid_mass,
    ence,
    miscalibration_area,
    sharpness,
    shown_coverage,
)
from bayrace.evaluate.metrics.scoring import (
    gaussian_crps,
    gaussian_nll,
    gaussian_nll_vectors,
    rank_correlation,
)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quality:
    """How good the σ of `count` numbers are; likelihoods and scores are those of Gaussians."""

    count: int
    calibration_error: float  # of central intervals, 0 to 0.332
    miscalibration_area: float  # 0 to 0.5
    coverage: Mapping[float, float]  # of central intervals, by level
    ence: float | None  # None where some σ are 0
    sharpness: float  # root mean square of σ, in the quantity's unit
    aleatoric: float  # and of its parts
    epistemic: float
    nll: float | None  # per number; None where some σ are 0
    crps: float  # in the quantity's unit
    rank_correlation: float | None  # Spearman's, of |error| and σ; None if σ does not vary

    def to_json(self) -> dict[str, Any]:
        """A JSON-able mapping."""
        return {**vars(self), "coverage": _levels(self.coverage)}


@dataclass(frozen=True)
class Whitened:
    """How good the covariances of `count` vectors are, from Mahalanobis distances."""

    count: int
    calibration_error: float  # of ellipsoids
    miscalibration_area: float
    coverage: Mapping[float, float]  # of ellipsoids, by level
    nll: float  # per vector, Gaussian

    def to_json(self) -> dict[str, Any]:
        """A JSON-able mapping."""
        return {**vars(self), "coverage": _levels(self.coverage)}


def quality(
    error: Array, std: Array, pit: Array, *, aleatoric: Array, epistemic: Array
) -> Quality | None:
    """Judge σ by errors (n,) and PIT values (n,); None where no σ is predicted, or any is nan.

    `aleatoric` and `epistemic` are the parts of the standard deviation `std`, (n,) each.
    """
    if not std.any() or np.isnan(error + std + pit).any():  # an empty array has none either
        return None
    mass, positive = central_mass(pit), bool((std > 0).all())
    correlation = rank_correlation(error, std)
    return Quality(
        count=error.size,
        calibration_error=calibration_error(mass),
        miscalibration_area=miscalibration_area(mass),
        coverage=shown_coverage(mass),
        ence=ence(error, std) if positive else None,
        sharpness=sharpness(std),
        aleatoric=sharpness(aleatoric),
        epistemic=sharpness(epistemic),
        nll=gaussian_nll(error, std) if positive else None,
        crps=gaussian_crps(error, std),
        rank_correlation=None if math.isnan(correlation) else correlation,
    )


def whitened(squared: Array, logdet: Array, mass: Array | None = None) -> Whitened | None:
    """Judge covariances by Mahalanobis² (n,) of 3-vectors; None where any is not invertible.

    `mass` (n,) is the predicted probability of smaller distances where errors are no Gaussians.
    """
    if squared.size == 0 or np.isnan(squared + logdet).any():
        return None
    mass = ellipsoid_mass(squared) if mass is None else mass
    return Whitened(
        count=squared.size,
        calibration_error=calibration_error(mass),
        miscalibration_area=miscalibration_area(mass),
        coverage=shown_coverage(mass),
        nll=gaussian_nll_vectors(squared, logdet),
    )


def _levels(coverage: Mapping[float, float]) -> dict[str, float]:
    """Coverage with the level in percent as its key: "90"."""
    return {f"{100 * level:.0f}": value for level, value in coverage.items()}
