"""Known answers of likelihoods, CRPS and rank correlation, against scipy and by integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from bayrace.evaluate.metrics.scoring import (
    gaussian_crps,
    gaussian_nll,
    gaussian_nll_vectors,
    mahalanobis,
    rank_correlation,
)

GENERATOR = np.random.default_rng(0)
ERROR = GENERATOR.normal(size=40)
STD = np.exp(GENERATOR.normal(size=40))


def test_scalar_nll_is_that_of_scipy() -> None:
    expected = -stats.norm.logpdf(ERROR, scale=STD).mean()
    assert gaussian_nll(ERROR, STD) == pytest.approx(expected)
    assert gaussian_nll(np.zeros(1), np.ones(1)) == pytest.approx(0.5 * math.log(2 * math.pi))
    with pytest.raises(ValueError, match="σ = 0"):
        gaussian_nll(ERROR, 0 * STD)


def test_vector_nll_is_that_of_scipy() -> None:
    root = GENERATOR.normal(size=(20, 3, 3))
    covariance = root @ root.mT + 0.1 * np.eye(3)
    error = GENERATOR.normal(size=(20, 3))
    squared, logdet = mahalanobis(error, covariance)
    pairs = zip(error, covariance, strict=True)
    expected = -np.mean([stats.multivariate_normal.logpdf(e, cov=c) for e, c in pairs])
    assert gaussian_nll_vectors(squared, logdet) == pytest.approx(expected)


def test_mahalanobis_by_hand() -> None:
    covariance = np.diag([4.0, 1.0, 0.25])[None]
    squared, logdet = mahalanobis(np.array([[2.0, 3.0, 1.0]]), covariance)
    assert squared[0] == pytest.approx(1 + 9 + 4)
    assert logdet[0] == pytest.approx(0.0, abs=1e-14)


def test_singular_covariances_are_nan() -> None:
    vector = np.array([1.0, 2.0, 3.0])
    covariance = np.stack([np.outer(vector, vector), np.zeros((3, 3)), np.full((3, 3), np.nan)])
    squared, logdet = mahalanobis(np.ones((3, 3)), covariance)
    assert np.isnan(squared).all()
    assert np.isnan(logdet).all()


def test_crps_equals_its_integral() -> None:
    for error, std in ((0.0, 1.0), (1.3, 0.7), (-2.0, 3.0)):
        below, _ = integrate.quad(lambda x, s=std: stats.norm.cdf(x, scale=s) ** 2, -60, error)
        above, _ = integrate.quad(lambda x, s=std: stats.norm.sf(x, scale=s) ** 2, error, 60)
        found = gaussian_crps(np.array([error]), np.array([std]))
        assert found == pytest.approx(below + above, rel=1e-6)
    assert gaussian_crps(np.array([-2.0, 1.0]), np.zeros(2)) == pytest.approx(1.5)


def test_crps_is_least_for_the_right_sigma() -> None:
    error = np.random.default_rng(3).normal(size=100_000)
    scores = [gaussian_crps(error, np.full_like(error, s)) for s in (0.8, 1.0, 1.25)]
    assert scores[1] == min(scores)
    assert scores[1] == pytest.approx(1 / math.sqrt(math.pi), rel=0.01)


def test_rank_correlation() -> None:
    std = np.array([1.0, 2.0, 3.0])
    assert rank_correlation(np.array([-1.0, 5.0, -9.0]), std) == pytest.approx(1.0)
    assert rank_correlation(np.array([9.0, 5.0, 1.0]), std) == pytest.approx(-1.0)
    tied = np.round(STD, 1)
    expected = stats.spearmanr(np.abs(ERROR), tied).statistic
    assert rank_correlation(ERROR, tied) == pytest.approx(expected)
    assert math.isnan(rank_correlation(ERROR, np.ones_like(STD)))
