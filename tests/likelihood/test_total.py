"""The scale of an epistemic variance beside known noise: known answers, and what is left to say."""

from __future__ import annotations

import numpy as np
import pytest

from bayrace.likelihood.total import total_scale

COUNT = 20_000


def made(alpha: float, *, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors of total variance a + α² s, with a and s that vary."""
    random = np.random.default_rng(0)
    shape, variance = random.gamma(2.0, size=COUNT), noise * random.gamma(2.0, size=COUNT)
    error = random.normal(size=COUNT) * np.sqrt(variance + alpha**2 * shape)
    return error, variance, shape


@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
def test_the_scale_that_made_the_errors_is_found(noise: float) -> None:
    error, variance, shape = made(0.7, noise=noise)
    found = total_scale(error, variance, shape, count=COUNT)
    assert found.alpha == pytest.approx(0.7, rel=0.03 if noise < 1 else 0.1)
    assert not found.bounded
    total = variance + found.alpha**2 * shape
    assert np.mean(error**2 / total) == pytest.approx(1, rel=0.03)  # noise is not counted twice


def test_it_is_the_most_likely_one() -> None:
    error, variance, shape = (each[:100] for each in made(0.7, noise=0.5))
    found = total_scale(error, variance, shape, count=100)

    def loss(alpha: float) -> float:
        total = variance + alpha**2 * shape
        return float(np.mean(np.log(total) + error**2 / total))

    assert found.loss == pytest.approx(loss(found.alpha), rel=1e-12)
    assert min(loss(alpha) for alpha in np.geomspace(1e-3, 1e3, 5000)) > found.loss - 1e-9


def test_noise_that_explains_more_than_there_is_leaves_what_is_allowed() -> None:
    error, variance, shape = made(0.0, noise=1.0)
    limits = []
    for count in (50, 5000):
        some = (error[:count], 1.5 * variance[:count], shape[:count])
        found = total_scale(*some, count=count)
        assert found.bounded
        zero = np.mean(np.log(some[1]) + some[0] ** 2 / some[1])
        assert count * (found.loss - zero) == pytest.approx(1, rel=1e-6)  # ½ of log likelihood
        limits.append(found.alpha)
    assert 0 < limits[1] < limits[0] / 2  # more errors allow less


def test_errors_of_nothing_have_no_scale() -> None:
    assert total_scale(np.zeros(5), np.ones(5), np.ones(5), count=5).loss == np.inf
