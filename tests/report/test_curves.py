from __future__ import annotations

import numpy as np
import pytest

from bayrace.evaluate.metrics.ood import auroc
from bayrace.report.curves import binned_rmse, folded_normal, histogram, roc, sampling_band, thinned


def test_the_area_under_the_curve_is_the_auroc():
    random = np.random.default_rng(0)
    known = random.integers(0, 9, 50).astype(float)  # with many ties
    unknown = random.integers(3, 12, 40).astype(float)
    false, true = roc(known, unknown)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert (np.diff(false) >= 0).all()
    assert (np.diff(true) >= 0).all()
    assert np.trapezoid(true, false) == pytest.approx(auroc(known, unknown), abs=1e-12)


def test_separated_scores_reach_the_corner():
    false, true = roc(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    assert ((false == 0) & (true == 1)).any()


def test_quantiles_of_the_folded_normal():
    assert folded_normal(0.682689492137) == pytest.approx(1.0)
    assert folded_normal(0.954499736104) == pytest.approx(2.0)


def test_calibrated_labels_stay_in_the_band_of_chance():
    low, high = sampling_band(200)
    levels = np.arange(1, 100) / 100
    assert (low <= levels).all()
    assert (high >= levels).all()
    half = 50 - 1
    assert high[half] - low[half] == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 200), abs=0.01)
    random = np.random.default_rng(0)
    found = random.binomial(200, 0.5, size=10_000) / 200
    assert np.mean((found >= low[half]) & (found <= high[half])) == pytest.approx(0.95, abs=0.02)


def test_bins_hold_equal_numbers_sorted_by_spread():
    std = np.repeat([4.0, 1.0, 2.0], 20)
    x, y = binned_rmse(std, 3 * std)
    np.testing.assert_allclose(x, [1, 2, 4])
    np.testing.assert_allclose(y, [3, 6, 12])


def test_histograms_share_their_edges():
    values = [np.array([1.0, 2.0, 3.0]), np.array([100.0])]
    edges, fractions = histogram(values)
    assert edges[0] < 1
    assert edges[-1] > 100
    assert [each.sum() for each in fractions] == pytest.approx([1, 1])
    np.testing.assert_allclose(np.diff(np.log(edges)), np.log(edges[1] / edges[0]))


def test_thinning_keeps_order_and_is_the_same_each_time():
    assert thinned(5, 10).tolist() == [0, 1, 2, 3, 4]
    chosen = thinned(1000, 100)
    assert chosen.size == np.unique(chosen).size == 100
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(chosen, thinned(1000, 100))
