"""Names of the validation metrics: energies in meV, forces in meV/Å, stress in meV/Å³.

`auto` is the MAE of forces, of energies where no frame has forces. Not the RMSE, which one odd
frame among few decides, and not the loss: with learnt noise, that rises at the end of training as σ
becomes too small, while errors still fall; σ is fitted once more afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Monitor = Literal[
    "auto",
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


def resolve(monitor: str, metrics: Mapping[str, float]) -> str:
    """The metric that `monitor` names among those there are."""
    if monitor == "auto":
        return next(name for name in ("forces_mae", "energy_mae", "loss") if name in metrics)
    if monitor not in metrics:
        raise ValueError(
            f"monitor={monitor!r}: no validation frame has such a label; "
            f"monitor one of {', '.join(sorted(metrics))}"
        )
    return monitor
