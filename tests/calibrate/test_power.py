"""σ to a power: found from errors of known σ, applied to covariances that turn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from bayrace.calibrate import power, scale
from bayrace.calibrate.calibration import Recalibration
from bayrace.core.prediction import Uncertain

COUNT = 20_000


def errors(*, factor: float, exponent: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predicted σ from 0.01 to 1 eV/Å, and errors of the size factor·σ^exponent."""
    random = np.random.default_rng(seed)
    level = 10 ** random.uniform(-2, 0, size=COUNT)
    return random.normal(size=COUNT) * factor * level**exponent / level, level


@pytest.mark.parametrize(("factor", "exponent"), [(3.0, 1.9), (0.4, 1.0), (0.2, 0.3)])
def test_the_power_is_found(factor: float, exponent: float) -> None:
    z, level = errors(factor=factor, exponent=exponent)
    fitted = power.fit(z, level)
    assert fitted.power == pytest.approx(exponent, abs=0.03)
    at_one = fitted.factor * (1 / fitted.pivot) ** (fitted.power - 1)
    assert at_one == pytest.approx(factor, rel=0.05)
    assert fitted.count == COUNT


def test_calibrated_at_both_ends_where_one_factor_is_not() -> None:
    z, level = errors(factor=3.0, exponent=1.9)
    fresh_z, fresh_level = errors(factor=3.0, exponent=1.9, seed=1)
    value = uncertain(fresh_level)
    for fitted, tolerance in ((power.fit(z, level), 0.03), (scale.fit(z), None)):
        std = fitted.apply(value).std.numpy()
        ratio = np.abs(fresh_z * fresh_level) / std
        ends = [ratio[fresh_level < 0.02], ratio[fresh_level > 0.5]]
        found = [math.sqrt(np.mean(end**2)) for end in ends]
        if tolerance is None:
            assert found[1] / found[0] > 5
        else:
            assert found == pytest.approx([1.0, 1.0], abs=tolerance)


def test_data_that_ask_for_the_absurd_are_bounded() -> None:
    level = np.geomspace(0.01, 1, 200)
    falling = power.fit(1 / level**2, level)
    assert falling.power == pytest.approx(0.0, abs=1e-3)
    assert power.fit(level**9, level).power == pytest.approx(4.0, abs=1e-3)


def test_covariances_turn_with_the_structure() -> None:
    random = np.random.default_rng(3)
    roots = torch.from_numpy(random.normal(size=(5, 3, 3)))
    covariance = roots @ roots.mT
    turn = torch.from_numpy(Rotation.random(random_state=1).as_matrix())
    fitted = Recalibration(1.3, 9, power=1.7, pivot=0.2)
    mean = torch.zeros(5, 3, dtype=torch.float64)
    direct = fitted.apply(Uncertain(mean, 0.4 * covariance, 0.6 * covariance))
    turned = turn @ covariance @ turn.T
    after = fitted.apply(Uncertain(mean, 0.4 * turned, 0.6 * turned))
    torch.testing.assert_close(after.total, turn @ direct.total @ turn.T, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(direct.epistemic, 0.6 * direct.total)
    level = (covariance.diagonal(dim1=1, dim2=2).mean(1)).sqrt()
    expected = (1.3 * (level / 0.2) ** 0.7).square()[:, None, None] * covariance
    torch.testing.assert_close(direct.total, expected)


def test_log_noise_follows() -> None:
    covariance = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1) * torch.tensor(
        [[[0.1]], [[2.0]]]
    )
    value = Uncertain(
        torch.zeros(2, 3).double(),
        covariance,
        torch.zeros_like(covariance),
        mean_log=torch.logdet(covariance),
    )
    found = Recalibration(0.5, 9, power=2.0, pivot=0.3).apply(value)
    torch.testing.assert_close(found.log_aleatoric, torch.logdet(found.aleatoric))


def test_no_sigma_stays_none() -> None:
    value = uncertain(np.zeros(3))
    for exponent in (0.5, 2.0):
        assert not Recalibration(2.0, 9, power=exponent, pivot=0.1).apply(value).std.any()


def test_text_and_files_without_a_power() -> None:
    fitted = Recalibration(0.5, 9, power=2.0, pivot=0.3)
    content = json.loads(json.dumps(fitted.to_json()))
    assert Recalibration.from_json(content) == fitted
    del content["power"], content["pivot"]
    assert Recalibration.from_json(content) == Recalibration(0.5, 9)
    with pytest.raises(ValueError, match="no increasing function of σ"):
        Recalibration(1.0, 9, power=-0.5)
    for hostile in ({"power": 1e38, "pivot": 0.1}, {"power": 2.0, "pivot": 1e-300}):
        with pytest.raises(ValueError, match="steeper"):  # σ would be infinite
            Recalibration(1.0, 9, **hostile)


def uncertain(level: np.ndarray) -> Uncertain:
    variance = torch.from_numpy(level**2)
    return Uncertain(torch.zeros_like(variance), 0.5 * variance, 0.5 * variance)
