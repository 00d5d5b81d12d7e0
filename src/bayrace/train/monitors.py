"""Names of the validation metrics: energies in meV, forces in meV/Å, stress in meV/Å³."""

from __future__ import annotations

from typing import Literal, get_args

Monitor = Literal[
    "loss",
    "energy_mae",
    "energy_rmse",
    "energy_mae_per_atom",
    "energy_rmse_per_atom",
    "forces_mae",
    "forces_rmse",
    "stress_mae",
    "stress_rmse",
]
MONITORS: tuple[str, ...] = get_args(Monitor)
