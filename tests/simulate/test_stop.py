"""Probabilities of large force errors against closed forms and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from bayrace.core.prediction import ErrorDistribution
from bayrace.nn.spreads import compiled
from bayrace.simulate import stop
from bayrace.simulate.stop import Risk, StopRule, any_of, exceedance, radial_tail, student_tail


def rotated(values: list[float], seed: int) -> np.ndarray:
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return (rotation * np.array(values)) @ rotation.T


def beyond(radius: np.ndarray | float) -> np.ndarray:
    """P(R > radius) of Student's t in three dimensions: four degrees of freedom, covariance 1."""
    return stats.f.sf(np.square(radius) * 2 / 3, 3, 4)


def students(values: list[float], count: int, seed: int) -> np.ndarray:
    """Lengths of vectors of that distribution with these eigenvalues: Gaussians over a common χ."""
    random = np.random.default_rng(seed)
    scale = np.sqrt(2 / random.chisquare(4, count))  # (ν - 2)/ν · ν/χ²
    errors = random.normal(size=(count, 3)) * np.sqrt(values) * scale[:, None]
    return np.linalg.norm(errors, axis=1)


def shape_of(distribution: object, *, knots: int = 201) -> ErrorDistribution:
    """Knots equidistant in normal scores up to a tail of 1e-6, as a calibration makes them."""
    p = special.ndtr(np.linspace(-4.75, 4.75, knots))
    p = (p + 1 - p[::-1]) / 2
    z = distribution.ppf(p)
    z = np.concatenate([[1.2 * z[0]], z, [1.2 * z[-1]]])
    return ErrorDistribution(tuple(((z - z[::-1]) / 2).tolist()), (0.0, *p.tolist(), 1.0))


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.2, 1.0])
def test_isotropic_errors(sigma: float) -> None:
    found = exceedance(sigma**2 * np.eye(3)[None], 0.5)
    assert found[0] == pytest.approx(beyond(0.5 / sigma), rel=1e-9)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 2.0, 3.5, 6.0])
def test_errors_along_a_line(ratio: float) -> None:
    found = exceedance(rotated([1.0, 0.0, 0.0], seed=1)[None], ratio)
    assert found[0] == pytest.approx(2 * stats.t.sf(math.sqrt(2) * ratio, 4), rel=1e-6)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 3.0, 6.0])
def test_errors_in_a_plane(ratio: float) -> None:
    found = exceedance(rotated([1.0, 1.0, 0.0], seed=2)[None], ratio)
    assert found[0] == pytest.approx((1 + ratio**2 / 2) ** -2, rel=1e-6)


@pytest.mark.parametrize("values", [[1, 0.5, 0.1], [1, 0.9, 0.001], [1, 1e-3, 1e-4], [3, 1, 1]])
def test_anisotropic_errors_against_monte_carlo(values: list[float]) -> None:
    covariance = rotated(values, seed=3)
    count = 1_000_000
    length = students(values, count, seed=0)
    for bound in (0.3, 1.0, 2.0, 3.0, 6.0):
        expected = float((length > bound).mean())
        spread = math.sqrt(expected * (1 - expected) / count)
        assert exceedance(covariance[None], bound)[0] == pytest.approx(expected, abs=4.5 * spread)


def test_anisotropic_errors_against_adaptive_quadrature() -> None:
    """Given two components, the third is Student's with two degrees of freedom more."""
    from scipy.integrate import dblquad

    def density(y: float, z: float, bound: float) -> float:
        rest = math.sqrt(max(bound**2 - (b * y) ** 2 - (c * z) ** 2, 0.0)) / a
        square = 4 + y * y + z * z
        within = 1 - 2 * special.stdtr(6, -rest * math.sqrt(6 / square))
        return (square / 4) ** -3 / (2 * math.pi) * within

    a, b, c = (math.sqrt(0.5) * axis for axis in (1.0, 0.6, 0.05))
    for bound in (0.05, 0.5, 2.5, 5.0):
        inside, _ = dblquad(
            lambda y, z, x=bound: density(y, z, x),
            -bound / c,
            bound / c,
            lambda z, x=bound: -math.sqrt(max(x * x - (c * z) ** 2, 0.0)) / b,
            lambda z, x=bound: math.sqrt(max(x * x - (c * z) ** 2, 0.0)) / b,
            epsabs=1e-9,
        )
        found = exceedance(rotated([1.0, 0.36, 0.0025], seed=4)[None], bound)[0]
        assert found == pytest.approx(1 - inside, rel=2e-5, abs=1e-9)


def test_certain_forces_are_never_wrong() -> None:
    assert exceedance(np.zeros((2, 3, 3)), 0.5).tolist() == [0.0, 0.0]


def test_probabilities_do_not_turn() -> None:
    found = [exceedance(rotated([1, 0.3, 0.01], seed)[None], 1.5)[0] for seed in range(5)]
    np.testing.assert_allclose(found, found[0], rtol=1e-10)


def test_shapes_of_gaussian_errors_give_gaussian_probabilities() -> None:
    tail = radial_tail(shape_of(stats.norm))
    radius = np.array([0.5, 1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(tail(radius), stats.chi.sf(radius, 3), rtol=0.01)


def test_the_tail_that_is_taken_is_a_shape() -> None:
    tail = radial_tail(shape_of(stats.t(4, scale=math.sqrt(0.5))))
    radius = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
    np.testing.assert_allclose(tail(radius), student_tail(radius), rtol=0.01)


def test_heavy_tails_against_monte_carlo() -> None:
    """Vectors of Student's distribution: Gaussian vectors over a common χ."""
    degrees, count = 5, 1_000_000
    random = np.random.default_rng(1)
    values = np.array([1.0, 0.4, 0.1])
    scale = np.sqrt(degrees / random.chisquare(degrees, count))
    errors = random.normal(size=(count, 3)) * np.sqrt(values) * scale[:, None]
    length = np.linalg.norm(errors, axis=1)
    shape = shape_of(stats.t(degrees))
    for bound in (0.5, 2.0, 4.0, 8.0):
        found = exceedance(rotated(values.tolist(), seed=5)[None], bound, shape=shape)[0]
        expected = float((length > bound).mean())
        spread = math.sqrt(expected / count)
        assert found == pytest.approx(expected, rel=0.005, abs=4.5 * spread)


def test_a_uniform_component_belongs_to_a_sphere() -> None:
    tail = radial_tail(ErrorDistribution((-2.0, -1.0, 0.0, 1.0, 2.0), (0.0, 0.25, 0.5, 0.75, 1.0)))
    assert tail(np.array([0.99, 3.01])).tolist() == [1.0, 0.0]


def test_densities_that_rise_are_levelled() -> None:
    """More errors between 1 and 2 than below 1, as few data may show: the majorant is uniform."""
    tail = radial_tail(ErrorDistribution((-2.0, -1.0, 1.0, 2.0), (0.0, 0.4, 0.6, 1.0)))
    assert tail(np.array([0.99, 3.01])).tolist() == [1.0, 0.0]


def test_skewed_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="skewed"):
        radial_tail(ErrorDistribution((-1.0, 0.0, 2.0), (0.0, 0.5, 1.0)))


def test_atoms_together() -> None:
    assert any_of(np.array([0.5, 0.5])) == pytest.approx(0.75)
    assert any_of(np.full(1000, 1e-12)) == pytest.approx(1e-9, rel=1e-6)
    assert any_of(np.array([1.0, 0.2])) == 1.0


def test_a_rule_takes_any_atom_or_the_worst() -> None:
    covariance = np.stack([0.01 * np.eye(3), 0.04 * np.eye(3)])
    p = beyond(np.array([5.0, 2.5]))
    either = StopRule(0.5, 0.05).risk(covariance)
    assert either == Risk(pytest.approx(p[0] + p[1] - p[0] * p[1]), 1)
    assert StopRule(0.5, 0.05, over_atoms="max").risk(covariance).probability == pytest.approx(p[1])
    assert StopRule(0.5, 0.05).broken(either)
    assert not StopRule(0.5, 0.2).broken(either)


@pytest.mark.parametrize(
    ("max_force_error", "probability", "message"),
    [(0.0, 0.1, "max_force_error=0"), (0.5, 1.0, "probability=1")],
)
def test_useless_rules_are_refused(
    max_force_error: float, probability: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        StopRule(max_force_error, probability)


def test_missing_covariances_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        exceedance(np.full((1, 3, 3), np.nan), 0.5)


@pytest.mark.parametrize("ratio", [1.5, 3.0, 10.0])
def test_round_covariances_need_few_directions(ratio: float) -> None:
    """What is computed with 56, 132 or 272 directions is what 3120 give."""
    random = np.random.default_rng(0)
    level = np.exp(random.uniform(-6, 2, size=(500, 1)))
    values = level * random.uniform(1, ratio, size=(500, 3))
    turned = np.linalg.qr(random.normal(size=(500, 3, 3)))[0]
    covariance = turned * values[:, None, :] @ turned.transpose(0, 2, 1)
    found = exceedance(covariance, 0.5)
    ordered = np.sort(values, axis=1)[:, ::-1]
    exact = stop._sphere_average(ordered, 0.5, stop.student_tail, (48, 64))
    likely = exact > 1e-6
    np.testing.assert_allclose(found[likely], exact[likely], rtol=1e-7)


def test_compiled_probabilities_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    values = np.sort(10.0 ** random.uniform(-6, 2, (200, 3)), axis=1)[:, ::-1]
    values[0], values[1, 1:] = 0.0, 0.0  # certain, a line
    values[3] = values[3, 0]  # round
    several = values[:, :, None] * np.eye(3)
    several[2] = 0.3  # a line again, with rounding
    assert compiled()
    (sigma, found, any_one), small = stop._assess(several, 0.5, None), values[:, 0] < 0.02
    assert stop._assess(several[small], 0.5, None)[2] < 0.9
    monkeypatch.setenv("BAYRACE_KERNEL", "plain")
    other, expected, any_expected = stop._assess(several, 0.5, None)
    for value, same in zip(sigma, other, strict=True):
        np.testing.assert_allclose(value, same, rtol=1e-12, atol=1e-15)
    assert any_one == pytest.approx(any_expected, rel=1e-12)
    assert found[0] == 0.0
    assert (expected > 1e-3).sum() > 50
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-300)
