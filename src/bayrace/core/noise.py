"""Which noise a model predicts, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CovarianceForm = Literal["equivariant", "cholesky"]
"""See `bayrace.nn.covariance`."""

EnergyNoise = Literal["extensive", "mean_log"]


@dataclass(frozen=True)
class NoiseSpec:
    """Which noise a model predicts, and how."""

    kind: Literal["none", "energy", "joint", "shallow"]  # for MSE, NLL_E, NLL_JEF, members
    energy: EnergyNoise
    covariance: CovarianceForm
    stress: bool
    members: int = 0  # shallow: deviations from the energy whose spread is our ignorance

    def __post_init__(self) -> None:
        if (self.kind == "shallow") != (self.members > 0) or self.members == 1:
            raise ValueError(
                f"kind={self.kind!r} with members={self.members}: a shallow ensemble has at least "
                "2 members, every other kind 0"
            )

    @property
    def quantities(self) -> tuple[str, ...]:
        """Whose variances heads predict."""
        if self.kind in ("none", "shallow"):
            return ()
        forces = ("forces",) if self.kind == "joint" else ()
        return ("energy", *forces, *(("stress",) if self.stress else ()))


NO_NOISE = NoiseSpec(kind="none", energy="extensive", covariance="equivariant", stress=False)
