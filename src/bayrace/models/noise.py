"""From the network's noise heads to variances, with the λ correction of the loss.

λ multiplies only the quadratic terms of the likelihood, so its optimum has σ² = λ · (error)².
The calibrated variance is therefore σ²/λ; everything downstream uses that one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.noise import NO_NOISE, EnergyNoise, NoiseSpec
from bayrace.core.outputs import Outputs
from bayrace.core.protocols import Model
from bayrace.nn.covariance import clamp_log_variance, covariance, covariance_from_mandel

__all__ = [
    "NO_NOISE",
    "EnergyNoise",
    "Lambdas",
    "Noise",
    "NoiseSpec",
    "energy_variance",
    "members_variance",
    "noise",
    "noise_spec_of",
]


@dataclass(frozen=True)
class Lambdas:
    """Weights of the quadratic terms in the likelihood."""

    energy: float
    forces: float
    stress: float

    def scaled(self, factors: Mapping[str, float]) -> Lambdas:
        """Those that multiply variances by these factors too, by quantity; with 0 none is left."""
        every = ((name, value, factors.get(name, 1.0)) for name, value in vars(self).items())
        return Lambdas(**{name: value / by if by else math.inf for name, value, by in every})


class Noise(NamedTuple):
    """Aleatoric variances, λ corrected."""

    energy: Tensor | None  # (S,) eV²
    forces: Tensor | None  # (N, 3, 3) (eV/Å)²
    stress: Tensor | None  # (S, 6, 6) (eV/Å³)², Voigt components


def noise_spec_of(model: Model) -> NoiseSpec:
    """What the heads of a model mean; no noise where it has none."""
    spec: NoiseSpec = getattr(model, "noise_spec", NO_NOISE)  # a protocol is asked for slowly
    return spec


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
    return batch.summed(head).var(-1, correction=0)


def energy_variance(head: Tensor, batch: GraphBatch, form: EnergyNoise) -> Tensor:
    """Raw energy variance of each structure from per-atom log-variances (N,): (S,) eV²."""
    log_variance = clamp_log_variance(head)
    if form == "extensive":
        return batch.summed(log_variance.exp())
    return batch.averaged(log_variance).exp()
