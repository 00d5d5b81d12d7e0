"""Errors of electronic states: MAE, RMSE and R² of values and gradients, as the paper has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayrace.core.units import KCAL_PER_MOL
from bayrace.potential.states import StatePrediction

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StateErrors:
    """Of one quantity, in its unit; R² is 1 for a perfect prediction, 0 for that of the mean."""

    name: str
    unit: str
    mae: float
    rmse: float
    r2: float


def errors(name: str, unit: str, label: Array, mean: Array) -> StateErrors:
    """Over all numbers; R² of gradients is that of their components."""
    away = (mean - label).ravel()
    spread = float(((label - label.mean()) ** 2).sum())
    r2 = 1 - float((away**2).sum()) / spread if spread > 0 else float("nan")
    return StateErrors(name, unit, float(np.abs(away).mean()), float(np.sqrt((away**2).mean())), r2)


def state_errors(
    told: StatePrediction,
    energies: Array,
    forces: Array,
    coupling: Array | None = None,
) -> list[StateErrors]:
    """Of every state, in kcal/mol and kcal/mol/Å, and of the coupling, 1/Å.

    `energies` (F, S) eV and `forces` (F, S, n, 3) eV/Å are labels. A coupling is known up to a sign
    in every structure, and the better one is taken.
    """
    rows = []
    for state in range(told.energies.shape[1]):
        rows.append(
            errors(
                f"E{state}",
                "kcal/mol",
                energies[:, state] / KCAL_PER_MOL,
                told.energies[:, state] / KCAL_PER_MOL,
            )
        )
        rows.append(
            errors(
                f"∇E{state}",
                "kcal/mol/Å",
                -forces[:, state] / KCAL_PER_MOL,
                told.gradients[:, state] / KCAL_PER_MOL,
            )
        )
    gap = (e[:, 1] - e[:, 0] for e in (energies, told.energies))
    rows.append(errors("E1 − E0", "kcal/mol", *(g / KCAL_PER_MOL for g in gap)))
    if coupling is not None and told.coupling is not None:
        sign = np.sign((coupling * told.coupling).sum((1, 2)))[:, None, None]
        rows.append(errors("d01", "1/Å", coupling, np.where(sign < 0, -1, 1) * told.coupling))
    return rows
