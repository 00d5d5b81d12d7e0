"""Every method on errors whose distribution is known: fitted on one half, judged on the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from bayrace.calibrate import conformal, isotonic, scale
from bayrace.calibrate.calibration import Recalibration
from bayrace.core.prediction import Uncertain
from bayrace.evaluate.metrics.calibration import (
    calibration_error,
    central_mass,
    coverage,
    ellipsoid_mass,
)
from bayrace.evaluate.metrics.scoring import mahalanobis
from bayrace.likelihood import robust

COUNT = 20_000
NOISE = 1.17 * (2 / COUNT + 2 / COUNT)
"""What CE exceeds once in a thousand for a fit on one half and a perfect match on the other.

CE is the Cramér-von Mises statistic of two samples, ω²·(1/n + 1/m), and P(ω² > 1.17) = 0.001.
"""


def standard_errors(kind: str, count: int, *, seed: int = 0) -> np.ndarray:
    """Errors of mean 0 and variance 1."""
    generator = np.random.default_rng(seed)
    if kind == "gaussian":
        return generator.normal(size=count)
    if kind == "skewed":
        return generator.exponential(size=count) - 1
    return generator.standard_t(4, size=count) / math.sqrt(2)  # heavy tails


def judged(z: np.ndarray, fitted: Recalibration | None) -> float:
    """Calibration error of errors z in units of the predicted σ, after a recalibration."""
    zeros = torch.zeros(z.size, dtype=torch.float64)
    value = Uncertain(zeros, torch.full_like(zeros, 0.75), torch.full_like(zeros, 0.25))
    if fitted is not None:
        value = fitted.apply(value)
    return calibration_error(central_mass(value.pit(torch.from_numpy(z)).numpy()))


def halves(kind: str, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Errors in units of a predicted σ that is `ratio` times the right one."""
    z = standard_errors(kind, COUNT) / ratio
    return z[: COUNT // 2], z[COUNT // 2 :]


FITS = {
    "scale": scale.fit,
    "scale-rms": lambda z: scale.fit(z, robust=False),
    "isotonic": lambda z: isotonic.fit(z, symmetric=False),
    "isotonic symmetric": lambda z: isotonic.fit(z, symmetric=True),
    "conformal": conformal.fit,
}


@pytest.mark.parametrize("method", FITS)
@pytest.mark.parametrize("ratio", [3.0, 1 / 3])
def test_wrong_sigma_of_gaussian_errors(method: str, ratio: float) -> None:
    seen, unseen = halves("gaussian", ratio)
    before, after = judged(unseen, None), judged(unseen, FITS[method](seen))
    assert before > 0.05
    assert after < before / 500
    assert after < NOISE


@pytest.mark.parametrize("ratio", [3.0, 1.0, 1 / 3])
def test_skewed_errors(ratio: float) -> None:
    seen, unseen = halves("skewed", ratio)
    before, after = judged(unseen, None), judged(unseen, isotonic.fit(seen, symmetric=False))
    assert before > 5e-3
    assert after < before / 20
    assert after < NOISE


@pytest.mark.parametrize("method", ["isotonic", "isotonic symmetric", "conformal"])
@pytest.mark.parametrize("ratio", [3.0, 1 / 3])
def test_heavy_tails(method: str, ratio: float) -> None:
    seen, unseen = halves("heavy", ratio)
    before, after = judged(unseen, None), judged(unseen, FITS[method](seen))
    assert after < before / 20
    assert after < NOISE


def test_scaling_cannot_repair_a_shape() -> None:
    seen, unseen = halves("skewed", 3.0)
    assert judged(unseen, scale.fit(seen, robust=False)) > 3e-3
    assert judged(unseen, scale.fit(seen)) > 5 * NOISE


@pytest.mark.parametrize("method", [name for name in FITS if name != "scale"])
@pytest.mark.parametrize("kind", ["gaussian", "skewed", "heavy"])
@pytest.mark.parametrize("count", [20, 5000])
def test_the_new_sigma_is_the_root_mean_square_error(method: str, kind: str, count: int) -> None:
    z = standard_errors(kind, count) / 3
    assert FITS[method](z).factor == pytest.approx(math.sqrt(np.mean(z**2)))


@pytest.mark.parametrize("kind", ["gaussian", "skewed"])
def test_shapes_have_unit_scale(kind: str) -> None:
    """The distribution itself agrees with the σ that stands for it."""
    seen, _ = halves(kind, 3.0)
    for method in ("isotonic", "isotonic symmetric", "conformal"):
        shape = FITS[method](seen).shape
        assert shape is not None
        z, p = np.array(shape.z), np.array(shape.p)
        square = np.sum(np.diff(p) * (z[1:] ** 2 + z[1:] * z[:-1] + z[:-1] ** 2) / 3)
        assert square == pytest.approx(1.0, abs=0.02)


def test_biased_errors_are_covered_though_the_mean_stays() -> None:
    seen, unseen = (z + 2.0 for z in halves("gaussian", 1.0))
    fitted = isotonic.fit(seen, symmetric=False)
    assert judged(unseen, fitted) < NOISE
    assert fitted.factor == pytest.approx(math.sqrt(1 + 4), rel=0.02)


def test_scale_known_answers() -> None:
    z, numbers = np.array([3.0, -4.0, 1.0]), np.array([1, 1, 8])
    assert scale.fit(z, robust=False) == Recalibration(math.sqrt(26 / 3), 3)
    found = scale.fit(z, numbers=numbers, robust=False)
    common = math.sqrt(26 / 3)  # on which elements of 2 and 1 errors lean as if 30 more had it
    own = {1: (math.sqrt(12.5), 2 / 32), 8: (1.0, 1 / 31)}
    expected = {number: common * (each / common) ** part for number, (each, part) in own.items()}
    assert found.by_element == pytest.approx(expected)
    assert found.factor == math.sqrt(26 / 3)
    with pytest.raises(ValueError, match="root mean square 0"):
        scale.fit(np.zeros(5))
    share = stats.chi2.cdf(6.25, 3) + 6.25 * stats.chi2.sf(6.25, 1)  # ⟨min(x², k²)⟩, k = 2.5
    assert robust.robust_scale(np.array([3.0, -4.0])) == pytest.approx(math.sqrt(12.5 / share))
    gross = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 1e6])
    found_square = robust.robust_scale(gross) ** 2  # s² = (9 + 6.25 s²) / 10 b
    assert found_square == pytest.approx(9 / (10 * share - 6.25), rel=1e-9)
    rare = np.concatenate([np.zeros(95), np.full(5, 2.0)])
    assert robust.robust_scale(rare) == pytest.approx(math.sqrt(0.2))


@pytest.mark.parametrize("count", [6, 8, 20, 50])
def test_the_next_error_is_as_large_as_few_said(count: int) -> None:
    """Whatever their number: the mean square of the next error in units of σ, and 90 % inside."""
    random = np.random.default_rng(0)
    factors = np.array([scale.fit(z).factor for z in random.normal(size=(4000, count))])
    assert np.mean(factors**-2) == pytest.approx(1, abs=0.05)
    inside = 2 * stats.norm.cdf(stats.norm.ppf(0.95) * factors) - 1
    assert inside.mean() == pytest.approx(0.9, abs=0.015)


@pytest.mark.parametrize("few", [1, 2, 3])
def test_one_or_two_errors_are_taken_for_three(few: int) -> None:
    """After which the next one has a standard deviation at all."""
    z = np.full(few, 2.0)
    assert scale.predictive_scale(z) == pytest.approx(3**0.5 * robust.robust_scale(z))


@pytest.mark.parametrize("count", [20, 50, 200])
def test_the_robust_scale_by_kind_of_error(count: int) -> None:
    """Bias of Gaussian errors, one gross error, and coverage of 90 % intervals in expectation."""
    random = np.random.default_rng(0)
    sets = {
        "gaussian": random.normal(size=(1000, count)),
        "heavy": random.standard_t(4, size=(1000, count)),
    }
    sets["gross"] = sets["gaussian"].copy()
    sets["gross"][:, 0] = 40.0
    found = {name: np.array([scale.fit(z).factor for z in each]) for name, each in sets.items()}
    assert found["gaussian"].mean() == pytest.approx((count / (count - 2)) ** 0.5, abs=0.03)
    if count >= 50:
        assert found["gross"].mean() / found["gaussian"].mean() < 1.15
    ends = {name: stats.norm.ppf(0.95) * factors for name, factors in found.items()}
    inside = {name: np.mean(2 * stats.norm.cdf(each) - 1) for name, each in ends.items()}
    inside["heavy"] = np.mean(2 * stats.t.cdf(ends["heavy"], 4) - 1)
    for name, share in inside.items():
        assert 0.85 < share < 0.95, name


def test_conformal_counts_structures() -> None:
    """Errors that a structure shares: coverage of a new structure is p, not less, on average."""
    levels = np.array([0.5, 0.68, 0.9])
    found = {"structures": [], "components": []}
    for seed in range(300):
        random = np.random.default_rng(seed)
        level = np.exp(random.normal(size=25 + 100))
        sizes = np.where(level[:25] > 1, 3, 12)  # few components where errors are large
        z = np.concatenate(
            [each * random.normal(size=n) for each, n in zip(level[:25], sizes, strict=True)]
        )
        fresh = level[25:, None] * random.normal(size=(100, 6))
        fits = {
            "structures": conformal.fit(z, np.arange(25).repeat(sizes)),
            "components": conformal.fit(z),
        }
        zeros = torch.zeros(600, dtype=torch.float64)
        for name, fitted in fits.items():
            value = fitted.apply(Uncertain(zeros, zeros + 1, zeros))
            pit = value.pit(torch.from_numpy(fresh.ravel())).numpy()
            found[name].append(coverage(central_mass(pit), levels))
    mean = {name: np.mean(each, axis=0) for name, each in found.items()}
    noise = np.std(found["structures"], axis=0) / math.sqrt(300)
    assert (mean["structures"] > levels - 2 * noise).all()
    assert (mean["components"] < levels - 0.03).all()  # which promises too much
    with pytest.raises(ValueError, match="errors of 10 structures for a conformal calibration"):
        conformal.fit(np.arange(100.0), np.arange(10).repeat(10))


def test_scaling_by_element() -> None:
    generator = np.random.default_rng(1)
    numbers = generator.choice([1, 6], size=COUNT)
    ratio = np.where(numbers == 1, 3.0, 1 / 3)
    z = generator.normal(size=COUNT) / ratio
    fitted = scale.fit(z[::2], numbers=numbers[::2])
    assert fitted.by_element[1] == pytest.approx(1 / 3, rel=0.03)
    rescaled = z[1::2] / fitted.factors(numbers[1::2])
    mixed = z[1::2] / fitted.factor
    assert judged(rescaled, None) < NOISE
    assert judged(mixed, None) > 20 * judged(rescaled, None)


def test_vectors_stay_calibrated_ellipsoids() -> None:
    """One factor of σ repairs whitened coverage too, in any frame."""
    generator = np.random.default_rng(4)
    root = generator.normal(size=(COUNT // 2, 3, 6))
    error = np.einsum("nij,nj->ni", root, generator.normal(size=(COUNT // 2, 6)))
    covariance = root @ root.mT / 9  # σ too small by 3
    std = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    factor = scale.fit((error / std)[::2].ravel()).factor
    before = calibration_error(ellipsoid_mass(mahalanobis(error, covariance)[0][1::2]))
    scaled = mahalanobis(error, covariance * factor**2)[0][1::2]
    assert before > 0.1
    assert calibration_error(ellipsoid_mass(scaled)) < before / 100


def test_conformal_coverage_is_guaranteed_for_few_errors() -> None:
    """Averaged over calibration sets of 25, coverage is at least p and at most p + 2/26."""
    levels = np.array([0.5, 0.68, 0.9])
    found = []
    for seed in range(400):
        z = standard_errors("skewed", 25 + 200, seed=seed)
        fitted = conformal.fit(z[:25])
        zeros = torch.zeros(200, dtype=torch.float64)
        value = fitted.apply(Uncertain(zeros, zeros + 1, zeros))
        found.append(coverage(central_mass(value.pit(torch.from_numpy(z[25:])).numpy()), levels))
    mean, noise = np.mean(found, axis=0), np.std(found, axis=0) / math.sqrt(400)
    assert (mean > levels - 2 * noise).all()
    assert (mean < levels + 2 / 26 + 2 * noise).all()


def test_conformal_quantile_is_the_order_statistic() -> None:
    z = standard_errors("heavy", 999)
    zeros = torch.zeros(1, dtype=torch.float64)
    for level in (0.5, 0.9, 0.99):
        low, high = conformal.fit(z).apply(Uncertain(zeros, zeros + 1, zeros)).interval(level)
        rank = round(1000 * level)  # (n + 1) p
        bounds = np.sort(np.abs(z))[[rank - 1, rank]]
        assert bounds[0] <= high.item() <= bounds[1] + 1e-6
        assert low.item() == pytest.approx(-high.item())


def test_symmetric_shapes_are_symmetric_to_the_bit() -> None:
    z = standard_errors("skewed", 501)
    for fitted in (isotonic.fit(z, symmetric=True), conformal.fit(z)):
        assert fitted.shape is not None
        assert fitted.shape.symmetric
    skewed = isotonic.fit(z, symmetric=False).shape
    assert skewed is not None
    assert not skewed.symmetric


@pytest.mark.parametrize("symmetric", [True, False])
def test_equal_errors_do_no_harm(symmetric: bool) -> None:
    """Planar molecules have many force components that are exactly right."""
    z = np.concatenate([np.zeros(300), np.round(standard_errors("gaussian", 700), 1)])
    for fitted in (isotonic.fit(z, symmetric=symmetric), conformal.fit(z)):
        assert fitted.shape is not None
        assert fitted.factor == pytest.approx(math.sqrt(np.mean(z**2)))


def test_few_errors_are_refused() -> None:
    with pytest.raises(ValueError, match="5 errors for an isotonic calibration, which needs 20"):
        isotonic.fit(np.arange(5.0), symmetric=False)
    with pytest.raises(
        ValueError, match="errors of 5 structures for a conformal calibration, which needs"
    ):
        conformal.fit(np.arange(5.0))


def test_tails_reach_beyond_the_data() -> None:
    z = standard_errors("gaussian", 50)
    shape = isotonic.fit(z, symmetric=False).shape
    assert shape is not None
    wide = shape.quantile(torch.tensor([0.9995], dtype=torch.float64)).item()
    assert z.max() < wide < 2 * stats.norm.ppf(0.9995)
