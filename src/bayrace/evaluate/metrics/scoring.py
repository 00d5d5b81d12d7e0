"""Scores of Gaussian predictions: likelihood, CRPS, rank correlation; vectors with covariances."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Array = NDArray[np.float64]

_SINGULAR = 1e-12  # smallest eigenvalue over the largest, below which there is no inverse


def gaussian_nll(error: Array, std: Array) -> float:
    """Mean of ½ log 2πσ² + ½ (error/σ)², of scalars."""
    if (std <= 0).any():
        raise ValueError("σ = 0: its likelihood has no value; judge a model that predicts noise")
    return float(np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * (error / std) ** 2))


def gaussian_nll_vectors(squared: Array, logdet: Array, *, dimension: int = 3) -> float:
    """Mean of ½ (d log 2π + log det Σ + Mahalanobis²) of vectors, as `mahalanobis` gives them."""
    return float(np.mean(0.5 * (dimension * math.log(2 * math.pi) + logdet + squared)))


def mahalanobis(error: Array, covariance: Array) -> tuple[Array, Array]:
    """eᵀ Σ⁻¹ e (n,) and log det Σ (n,) of errors (n, d) and covariances (n, d, d).

    Both do not change under rotation. Where Σ has no inverse, both are nan: an ensemble of fewer
    than d + 1 members without noise leaves directions without any variance.
    """
    values, vectors = np.linalg.eigh(np.where(np.isfinite(covariance), covariance, 0.0))
    regular = (values[:, 0] > _SINGULAR * values[:, -1]) & np.isfinite(covariance).all((1, 2))
    values = np.where(regular[:, None], values, np.nan)
    along = np.einsum("nji,nj->ni", vectors, error)
    return np.sum(along**2 / values, axis=1), np.sum(np.log(values), axis=1)


def gaussian_crps(error: Array, std: Array) -> float:
    """Mean continuous ranked probability score, in the unit of the error; |error| where σ = 0."""
    safe = np.where(std > 0, std, 1.0)
    z = error / safe
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    spread = safe * (z * special.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    return float(np.mean(np.where(std > 0, spread, np.abs(error))))


def rank_correlation(error: Array, std: Array) -> float:
    """Spearman's correlation of |error| and σ; nan where either does not vary."""
    ranks = [stats.rankdata(values.ravel()) for values in (np.abs(error), std)]
    centred = [rank - rank.mean() for rank in ranks]
    norm = math.sqrt(float(np.prod([np.sum(each**2) for each in centred])))
    return float(np.sum(centred[0] * centred[1])) / norm if norm > 0 else math.nan
