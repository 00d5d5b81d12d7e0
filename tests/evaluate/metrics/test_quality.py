"""All metrics together: consistent with their functions, absent where they have no value."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from bayrace.evaluate.metrics.calibration import SATURATED
from bayrace.evaluate.metrics.quality import Quality, quality, whitened
from bayrace.evaluate.metrics.scoring import mahalanobis


def judged(error: np.ndarray, std: np.ndarray, pit: np.ndarray | None = None) -> Quality | None:
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(error == 0, 0.0, -error / std)
    part = std / math.sqrt(2)
    u = stats.norm.cdf(z) if pit is None else pit
    return quality(error, std, u, aleatoric=part, epistemic=part)


def test_calibrated_data() -> None:
    generator = np.random.default_rng(0)
    std = np.exp(generator.normal(size=20_000))
    found = judged(generator.normal(size=20_000) * std, std)
    assert found is not None
    assert found.count == 20_000
    assert found.calibration_error < 1e-4
    assert found.coverage[0.68] == pytest.approx(0.68, abs=0.01)
    assert found.ence is not None
    assert found.ence < 0.05
    assert found.sharpness == pytest.approx(math.sqrt(2) * found.epistemic)
    assert found.aleatoric == found.epistemic
    assert found.rank_correlation is not None
    assert found.rank_correlation > 0.5
    text = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert list(text["coverage"]) == ["50", "68", "90", "95", "99"]


def test_no_sigma_has_no_quality() -> None:
    assert judged(np.ones(3), np.zeros(3)) is None
    assert judged(np.zeros(0), np.zeros(0)) is None
    assert judged(np.array([1.0, np.nan]), np.ones(2)) is None
    assert whitened(np.zeros(0), np.zeros(0)) is None
    assert whitened(*mahalanobis(np.ones((2, 3)), np.zeros((2, 3, 3)))) is None


def test_some_sigma_without_value() -> None:
    """A planar molecule: forces out of the plane are 0 and certain."""
    found = judged(np.array([0.0, 1.0, -1.0]), np.array([0.0, 1.0, 1.0]))
    assert found is not None
    assert found.nll is None
    assert found.ence is None
    assert math.isfinite(found.crps)
    constant = judged(np.arange(3.0), np.ones(3))
    assert constant is not None
    assert constant.rank_correlation is None
    assert constant.nll is not None
    json.dumps(found.to_json(), allow_nan=False)


def test_saturated() -> None:
    found = judged(np.ones(100), np.full(100, 1e-12))
    assert found is not None
    assert found.calibration_error == pytest.approx(SATURATED)
    assert found.coverage[0.99] == 0.0


def test_whitened() -> None:
    generator = np.random.default_rng(1)
    covariance = np.broadcast_to(np.diag([1.0, 4.0, 9.0]), (20_000, 3, 3))
    error = generator.normal(size=(20_000, 3)) * np.array([1.0, 2.0, 3.0])
    found = whitened(*mahalanobis(error, covariance))
    assert found is not None
    assert found.calibration_error < 1e-4
    entropy = 1.5 * math.log(2 * math.pi * math.e) + 0.5 * math.log(36)
    assert found.nll == pytest.approx(entropy, abs=0.05)
    json.dumps(found.to_json(), allow_nan=False)
