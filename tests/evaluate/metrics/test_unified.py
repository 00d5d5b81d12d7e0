"""The unified score by hand."""

from __future__ import annotations

import pytest

from bayrace.evaluate.metrics.unified import normalised, unified_score


def test_by_hand() -> None:
    found = unified_score(
        energy_rmse=0.01, forces_rmse=0.03, energy_ce=0.2, forces_ce=0.04, auroc=0.9
    )
    assert found == pytest.approx(0.2306 + 0.03 + 0.025)


def test_perfect_is_zero() -> None:
    assert unified_score(energy_rmse=0, forces_rmse=0, energy_ce=0, forces_ce=0, auroc=1) == 0.0


def test_normalised_over_a_pool() -> None:
    assert normalised({"a": 0.1, "b": 0.3, "c": 0.2}) == pytest.approx({"a": 0, "b": 1, "c": 0.5})
    assert normalised({"a": 0.1, "b": 0.1}) == {"a": 0.0, "b": 0.0}
    with pytest.raises(ValueError, match="an empty pool"):
        normalised({})
