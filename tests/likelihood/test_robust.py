"""Shares of noise and ignorance in errors whose origin is known."""

from __future__ import annotations

import numpy as np
import pytest

from bayrace.likelihood.robust import least_within, shares

RANDOM = np.random.default_rng(0)
COUNT = 4000
NOISE = np.exp(RANDOM.normal(size=COUNT))
SHAPE = np.exp(2 * RANDOM.normal(size=COUNT))


def drawn(noise: float, ignorance: float, count: int = COUNT) -> np.ndarray:
    variance = noise * NOISE[:count] + ignorance * SHAPE[:count]
    return variance * RANDOM.normal(size=count) ** 2


def test_both_are_found_where_there_are_both() -> None:
    found = shares(drawn(3.0, 0.5), NOISE, SHAPE, count=COUNT)
    assert found.noise == pytest.approx(3.0, rel=0.15)
    assert found.ignorance == pytest.approx(0.5, rel=0.15)


def test_noise_alone_leaves_little_ignorance() -> None:
    found = shares(drawn(3.0, 0.0), NOISE, SHAPE, count=COUNT)
    assert found.noise == pytest.approx(3.0, rel=0.1)
    assert found.ignorance * SHAPE.mean() < 0.06 * 3.0 * NOISE.mean()


def test_ignorance_alone_leaves_the_least_noise() -> None:
    found = shares(drawn(0.0, 0.5), NOISE, SHAPE, count=COUNT)
    assert found.noise * NOISE.mean() == pytest.approx(0.001 * 0.5 * SHAPE.mean(), rel=0.2)
    assert found.ignorance == pytest.approx(0.5, rel=0.1)


def test_without_noise_the_scale_is_that_of_the_shape() -> None:
    found = shares(drawn(0.0, 0.5), np.zeros(COUNT), SHAPE, count=COUNT)
    assert found.noise == 0
    assert found.ignorance == pytest.approx(0.5, rel=0.06)


def test_few_errors_that_cannot_tell_are_called_ignorance() -> None:
    square = RANDOM.normal(size=12) ** 2
    found = shares(square, np.ones(12), np.ones(12), count=12)
    assert found.noise < 0.02 * found.ignorance


def test_one_gross_error_moves_little() -> None:
    square = drawn(0.0, 0.5, 50)
    spoilt = square.copy()
    spoilt[7] = 1e4 * square.max()
    clean = shares(square, np.zeros(50), SHAPE[:50], count=50)
    found = shares(spoilt, np.zeros(50), SHAPE[:50], count=50)
    assert found.ignorance == pytest.approx(clean.ignorance, rel=0.25)


@pytest.mark.parametrize(("count", "expected"), [(10, 1.0), (20, 2.0), (1000, 3.0)])
def test_more_errors_leave_less_to_choose(count: int, expected: float) -> None:
    """Of losses 0.09, 0.04 and 0 above the best, those count that half a unit / count allows."""
    assert least_within((1.0, 2.0, 3.0, 4.0), (5.09, 5.04, 5.0, 5.2), count=count) == expected
