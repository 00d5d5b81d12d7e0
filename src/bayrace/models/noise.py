"""From the network's noise heads to variances, with the λ correction of the loss.

λ multiplies only the quadratic terms of the likelihood, so its optimum has σ² = λ · (error)².
The calibrated variance is therefore σ²/λ; everything downstream uses that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Outputs
from bayrace.core.protocols import Model
from bayrace.nn.covariance import (
    CovarianceForm,
    clamp_log_variance,
    covariance,
    covariance_from_mandel,
)

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


NO_NOISE = NoiseSpec(kind="none", energy="extensive", covariance="equivariant", stress=False)


class NoisyModel(Model, Protocol):
    """A model that says what its heads mean."""

    @property
    def noise_spec(self) -> NoiseSpec:
        """Which noise the heads describe, and how."""
        ...


@dataclass(frozen=True)
class Lambdas:
    """Weights of the quadratic terms in the likelihood."""

    energy: float
    forces: float
    stress: float


class Noise(NamedTuple):
    """Aleatoric variances, λ corrected."""

    energy: Tensor | None  # (S,) eV²
    forces: Tensor | None  # (N, 3, 3) (eV/Å)²
    stress: Tensor | None  # (S, 6, 6) (eV/Å³)², Voigt components


def noise(outputs: Outputs, batch: GraphBatch, spec: NoiseSpec, lambdas: Lambdas) -> Noise:
    """Calibrated noise of one weight sample."""
    energy = forces = stress = None
    if spec.kind == "shallow":  # no noise: what members say differently is ignorance
        return Noise(None, None, None)
    if outputs.energy_head is not None:
        energy = energy_variance(outputs.energy_head, batch, spec.energy) / lambdas.energy
    if outputs.forces_head is not None:
        forces = covariance(outputs.forces_head, spec.covariance) / lambdas.forces
    if outputs.stress_head is not None:
        mandel = covariance(outputs.stress_head, spec.covariance)
        stress = covariance_from_mandel(mandel) / lambdas.stress
    return Noise(energy, forces, stress)


def members_variance(head: Tensor, batch: GraphBatch) -> Tensor:
    """Raw variance over members of the energy from per-atom deviations (N, M): (S,) eV²."""
    zero = head.new_zeros(batch.structures, head.shape[-1])
    return zero.index_add(0, batch.owner, head).var(-1, correction=0)


def energy_variance(head: Tensor, batch: GraphBatch, form: EnergyNoise) -> Tensor:
    """Raw energy variance of each structure from per-atom log-variances (N,): (S,) eV²."""
    log_variance = clamp_log_variance(head)
    zero = head.new_zeros(batch.structures)
    if form == "extensive":
        return zero.index_add(0, batch.owner, log_variance.exp())
    count = torch.ones_like(head)
    atoms = zero.index_add(0, batch.owner, count)
    return (zero.index_add(0, batch.owner, log_variance) / atoms).exp()
