"""One number per method from accuracy, calibration and detection (docs/theory.md); less is better.

score = 0.25·23.06·(E_RMSE + F_RMSE) + 0.125·(CE_E + CE_F) + 0.25·(1 - AUROC)

It adds kcal/mol, kcal/mol/Å and pure numbers, so it ranks methods on one data set and says nothing
across data sets.
"""

from __future__ import annotations

from collections.abc import Mapping

KCAL_PER_MOL_PER_EV = 23.06  # with the digits of the definition


def unified_score(
    *,
    energy_rmse: float,
    forces_rmse: float,
    energy_ce: float,
    forces_ce: float,
    auroc: float,
) -> float:
    """The score from errors in eV and eV/Å and calibration errors, raw or normalised."""
    accuracy = 0.25 * KCAL_PER_MOL_PER_EV * (energy_rmse + forces_rmse)
    return accuracy + 0.125 * (energy_ce + forces_ce) + 0.25 * (1 - auroc)


def normalised(pool: Mapping[str, float]) -> dict[str, float]:
    """Values of a pool of methods moved to 0..1 by its least and its greatest.

    The result depends on who is in the pool, so the pool must be stated with it. Values that are
    all equal become 0.
    """
    if not pool:
        raise ValueError("an empty pool; name the methods that are compared")
    low, high = min(pool.values()), max(pool.values())
    width = high - low
    return {name: (value - low) / width if width > 0 else 0.0 for name, value in pool.items()}
