"""Known answers of coverage and its errors: perfect, saturated, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.transform import Rotation

from bayrace.evaluate.metrics.calibration import (
    LEVELS,
    SATURATED,
    calibration_error,
    central_mass,
    coverage,
    ellipsoid_mass,
    ence,
    miscalibration_area,
    sharpness,
    shown_coverage,
)
from bayrace.evaluate.metrics.scoring import mahalanobis


def gaussian_masses(count: int, *, ratio: float, seed: int = 0) -> np.ndarray:
    """Masses where the predicted σ is `ratio` times the right one, itself varying."""
    generator = np.random.default_rng(seed)
    std = np.exp(generator.normal(size=count))
    error = generator.normal(size=count) * std
    return central_mass(stats.norm.cdf(error / (ratio * std)))


def test_calibrated_data() -> None:
    mass = gaussian_masses(20_000, ratio=1.0)
    assert calibration_error(mass) < 1e-4
    assert miscalibration_area(mass) < 0.01
    found = shown_coverage(mass)
    assert list(found) == [0.5, 0.68, 0.9, 0.95, 0.99]
    for level, covered in found.items():
        assert covered == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 20_000))


def test_noise_of_the_calibration_error_is_as_documented() -> None:
    found = [calibration_error(gaussian_masses(500, ratio=1.0, seed=s)) for s in range(400)]
    assert np.mean(found) == pytest.approx(1 / (6 * 500), rel=0.15)


def test_saturated_data_give_a_third() -> None:
    assert pytest.approx(sum((k / 100) ** 2 for k in range(1, 100)) / 99) == SATURATED
    assert pytest.approx(1 / 3, abs=0.002) == SATURATED
    for mass in (np.ones(7), np.zeros(7)):  # σ -> 0, σ -> ∞
        assert calibration_error(mass) == pytest.approx(SATURATED, abs=1e-15)
        assert miscalibration_area(mass) == pytest.approx(0.5, abs=1e-15)
    certain = stats.norm.cdf(np.random.default_rng(0).normal(size=1000) / 1e-9)
    assert calibration_error(central_mass(certain)) == pytest.approx(SATURATED, abs=1e-15)


@pytest.mark.parametrize("ratio", [1 / 3, 3.0])
def test_wrong_sigma_gives_the_error_of_its_coverage(ratio: float) -> None:
    covered = 2 * stats.norm.cdf(ratio * stats.norm.ppf((1 + LEVELS) / 2)) - 1
    expected = np.mean((covered - LEVELS) ** 2)
    found = calibration_error(gaussian_masses(200_000, ratio=ratio))
    assert found == pytest.approx(expected, rel=0.02)
    assert found > 0.05


def test_coverage_by_hand() -> None:
    mass = central_mass(np.array([0.5, 0.75, 0.1, 1.0]))
    assert mass == pytest.approx([0.0, 0.5, 0.8, 1.0])
    levels = np.array([0.0, 0.5, 0.79, 0.99, 1.0])
    assert coverage(mass, levels).tolist() == [0.25, 0.5, 0.5, 0.75, 1.0]
    with pytest.raises(ValueError, match="no numbers to judge"):
        coverage(np.zeros(0), LEVELS)
    with pytest.raises(ValueError, match="1 of 2 numbers are nan"):
        coverage(np.array([0.1, np.nan]), LEVELS)


def test_miscalibration_area_by_hand() -> None:
    # One label of mass ½: coverage 0 until ½, then 1, so the area is 1/8 + 1/8.
    assert miscalibration_area(np.array([0.5])) == pytest.approx(0.25, abs=1e-15)
    dense = np.linspace(0, 1, 400_001)
    mass = np.random.default_rng(5).beta(2, 3, size=30)
    numeric = np.mean(np.abs(coverage(mass, dense) - dense))
    assert miscalibration_area(mass) == pytest.approx(numeric, abs=1e-5)


def test_ence_by_hand() -> None:
    error = np.array([3.0, -1.0, 1.0, 6.0])
    std = np.array([2.0, 1.0, 1.0, 2.0])
    # bins: σ = 1 with RMSE 1, and σ = 2 with RMSE √(45/2)
    expected = (0.0 + (math.sqrt(22.5) - 2) / 2) / 2
    assert ence(error, std, bins=2) == pytest.approx(expected)
    assert ence(std, std, bins=100) == 0.0  # |error| = σ everywhere, fewer numbers than bins
    assert ence(3 * std, std) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="σ = 0 in a whole bin"):
        ence(error, np.zeros(4))


def test_sharpness_by_hand() -> None:
    assert sharpness(np.array([[3.0], [4.0]])) == pytest.approx(math.sqrt(12.5))


def correlated(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Force errors with covariances far from spheres."""
    generator = np.random.default_rng(2)
    root = generator.normal(size=(count, 3, 6)) * np.array([1, 1, 1, 0.1, 0.1, 0.1])
    return np.einsum("nij,nj->ni", root, generator.normal(size=(count, 6))), root @ root.mT


def test_whitened_forces_are_calibrated_and_do_not_turn() -> None:
    error, covariance = correlated(20_000)
    squared, logdet = mahalanobis(error, covariance)
    assert calibration_error(ellipsoid_mass(squared)) < 1e-4
    turn = Rotation.random(rng=np.random.default_rng(1)).as_matrix()
    turned, turned_logdet = mahalanobis(error @ turn.T, turn @ covariance @ turn.T)
    np.testing.assert_allclose(turned, squared, rtol=1e-10)
    np.testing.assert_allclose(turned_logdet, logdet, rtol=1e-10, atol=1e-10)
    assert calibration_error(ellipsoid_mass(turned)) == pytest.approx(
        calibration_error(ellipsoid_mass(squared)), rel=1e-6
    )


def test_whitening_sees_what_components_do_not() -> None:
    """Right variances with wrong correlations: components calibrated, ellipsoids not."""
    error, covariance = correlated(20_000)
    flat = np.zeros_like(covariance)
    diagonal = np.arange(3)
    flat[:, diagonal, diagonal] = covariance[:, diagonal, diagonal]
    std = np.sqrt(flat[:, diagonal, diagonal])
    assert calibration_error(central_mass(stats.norm.cdf(error / std))) < 1e-4
    assert calibration_error(ellipsoid_mass(mahalanobis(error, flat)[0])) > 1e-3
