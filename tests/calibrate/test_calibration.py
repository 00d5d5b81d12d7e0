"""What a calibration does to a prediction, and its way through a file."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.core.prediction import ErrorDistribution, Prediction, Uncertain

SKEWED = ErrorDistribution((-1.0, 0.0, 3.0), (0.0, 0.7, 1.0))
EVEN = ErrorDistribution((-2.0, 0.0, 2.0), (0.0, 0.5, 1.0))


def covariances(count: int, size: int, seed: int) -> torch.Tensor:
    root = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, size, size)))
    return root @ root.mT


def make_prediction() -> Prediction:
    def vectors(count: int, size: int) -> Uncertain:
        mean = torch.from_numpy(np.random.default_rng(0).normal(size=(count, size)))
        return Uncertain(mean, covariances(count, size, 1), covariances(count, size, 2))

    positive = torch.tensor([1.0, 4.0], dtype=torch.float64)
    return Prediction(
        energy=Uncertain(positive - 10, positive, positive / 2),
        forces=vectors(3, 3),
        stress=vectors(2, 6),
        atomic_energy=torch.zeros(3, dtype=torch.float64),
        owner=torch.tensor([0, 0, 1]),
    )


def make_calibration() -> Calibration:
    return Calibration(
        method="made up",
        energy=Recalibration(2.0, 10, SKEWED),
        forces=Recalibration(0.5, 30, EVEN, {1: 3.0}),
        stress=None,
        frames=7,
        fingerprint="ab",
    )


def test_variances_scale_alike_and_means_stay() -> None:
    raw, numbers = make_prediction(), np.array([8, 1, 6])
    made = make_calibration().apply(raw, numbers)
    for name in ("energy", "forces", "stress"):
        assert torch.equal(getattr(made, name).mean, getattr(raw, name).mean)
    squares = torch.tensor([0.25, 9.0, 0.25], dtype=torch.float64)[:, None, None]
    for part in ("aleatoric", "epistemic"):
        before, after = getattr(raw.energy, part), getattr(made.energy, part)
        torch.testing.assert_close(after, 4 * before)
        before, after = getattr(raw.forces, part), getattr(made.forces, part)
        torch.testing.assert_close(after, squares * before)
    torch.testing.assert_close(made.energy.std, 2 * raw.energy.std)
    assert made.energy.shape is SKEWED
    assert made.stress is raw.stress


def test_applying_commutes_with_rotation() -> None:
    raw, numbers = make_prediction(), torch.tensor([8, 1, 6])
    turn = torch.from_numpy(Rotation.random(rng=np.random.default_rng(3)).as_matrix())

    def turned(value: Uncertain) -> Uncertain:
        mean = value.mean @ turn.mT
        parts = (turn @ part @ turn.mT for part in (value.aleatoric, value.epistemic))
        return Uncertain(mean, *parts, value.shape)

    calibration = make_calibration()
    first = turned(calibration.apply(raw, numbers).forces)
    rotated = Prediction(raw.energy, turned(raw.forces), None, raw.atomic_energy, raw.owner)
    second = calibration.apply(rotated, numbers).forces
    torch.testing.assert_close(first.mean, second.mean)
    torch.testing.assert_close(first.total, second.total)
    assert first.shape == second.shape


def test_json_round_trip_is_exact() -> None:
    calibration = make_calibration()
    text = json.dumps(calibration.to_json(), allow_nan=False)
    assert Calibration.from_json(json.loads(text)) == calibration


def test_skewed_vectors_are_refused() -> None:
    fitted = Recalibration(1.0, 5, SKEWED)
    with pytest.raises(ValueError, match="the shape of the forces is skewed"):
        Calibration("isotonic", None, fitted, None, 1, "")
    with pytest.raises(ValueError, match="the shape of the stress is skewed"):
        Calibration("isotonic", None, None, fitted, 1, "")


def test_what_cannot_be_applied() -> None:
    raw, calibration = make_prediction(), make_calibration()
    with pytest.raises(ValueError, match="need the atomic numbers"):
        calibration.apply(raw)
    with pytest.raises(ValueError, match="calibrated already"):
        calibration.apply(calibration.apply(raw, np.array([8, 1, 6])), np.array([8, 1, 6]))
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"factor .* of σ is not between"):
            Recalibration(factor, 3)


def test_shape_known_answers() -> None:
    z = torch.tensor([-5.0, -1.0, -0.5, 0.0, 1.0, 3.0, 9.0, math.inf], dtype=torch.float64)
    expected = torch.tensor([0, 0, 0.35, 0.7, 0.8, 1, 1, 1], dtype=torch.float64)
    torch.testing.assert_close(SKEWED.cdf(z), expected)
    torch.testing.assert_close(SKEWED.quantile(SKEWED.cdf(z[1:6])), z[1:6])
    assert SKEWED.cdf(torch.tensor([[math.nan]])).isnan().all()
    assert EVEN.symmetric
    assert not SKEWED.symmetric
    for z_knots, p in (((0.0, 0.0), (0.0, 1.0)), ((0.0,), (0.0,)), ((0.0, 1.0), (0.0, 0.5, 1.0))):
        with pytest.raises(ValueError, match="two ascending sequences"):
            ErrorDistribution(z_knots, p)
    with pytest.raises(ValueError, match="it must be from 0 to 1"):
        ErrorDistribution((0.0, 1.0), (0.1, 1.0))


def test_pit_and_intervals() -> None:
    mean = torch.tensor([1.0, 2.0], dtype=torch.float64)
    gaussian = Uncertain(mean, torch.full_like(mean, 3.0), torch.ones_like(mean))  # σ = 2
    label = torch.tensor([1.0 + 2 * 1.959963984540054, math.nan], dtype=torch.float64)
    found = gaussian.pit(label)
    assert found[0].item() == pytest.approx(0.975, abs=1e-12)
    assert found[1].isnan()
    low, high = gaussian.interval(0.95)
    torch.testing.assert_close(high - mean, mean - low)
    assert high[0].item() == pytest.approx(label[0].item(), abs=1e-9)
    skewed = Uncertain(mean, torch.full_like(mean, 3.0), torch.ones_like(mean), SKEWED)
    low, high = skewed.interval(0.8)
    torch.testing.assert_close(low, mean + 2 * (-1 + 0.1 / 0.7))
    torch.testing.assert_close(high, mean + 2 * (3 * 0.2 / 0.3))
    torch.testing.assert_close(skewed.pit(high), torch.full_like(mean, 0.9))
    with pytest.raises(ValueError, match="level=95: an interval's probability"):
        gaussian.interval(95)


def test_pit_without_spread_is_saturated() -> None:
    mean = torch.zeros(3, dtype=torch.float64)
    certain = Uncertain(mean, mean, mean)
    found = certain.pit(torch.tensor([-1e-9, 0.0, 1e-9], dtype=torch.float64))
    assert found.tolist() == [0.0, 0.5, 1.0]
