"""Squared, absolute or Huber errors: λ_E mean (ΔE)² + λ_F mean (Δf)² + λ_S mean (Δσ)²."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import LossParts, Outputs
from bayrace.likelihood.weights import atom_weight, present, residual, weighted_mean
from bayrace.models.noise import Lambdas
from bayrace.nn.covariance import to_mandel

Robust = Literal["none", "huber", "l1"]


@dataclass(frozen=True)
class SquaredError:
    """The loss for models without noise heads.

    `per_atom_energy` divides energy errors by the number of atoms. With `robust`, errors count
    linearly: everywhere (l1) or beyond `huber_delta` (huber; eV, eV/Å, eV/Å³).
    """

    lambdas: Lambdas
    per_atom_energy: bool
    robust: Robust
    huber_delta: float

    def loss(self, outputs: Outputs, labels: Labels, batch: GraphBatch) -> LossParts:
        """Total and its parts; missing labels do not count."""
        parts = {
            "energy": self.lambdas.energy * self._energy(outputs, labels, batch),
            "forces": self.lambdas.forces * self.forces(outputs, labels, batch),
        }
        if outputs.stress is not None:
            parts["stress"] = self.lambdas.stress * self._stress(outputs, labels)
        return LossParts(torch.stack([part.double() for part in parts.values()]).sum(), parts)

    def score(self) -> SquaredError:
        """Itself."""
        return self

    def forces(self, outputs: Outputs, labels: Labels, batch: GraphBatch) -> Tensor:
        """Mean over force components, without λ."""
        error = self._measure(residual(outputs.forces, labels.forces)).mean(-1)
        return weighted_mean(error, present(labels.forces), atom_weight(labels, batch))

    def _energy(self, outputs: Outputs, labels: Labels, batch: GraphBatch) -> Tensor:
        error = residual(outputs.energy, labels.energy)
        if self.per_atom_energy:
            error = error / batch.atom_counts()
        return weighted_mean(self._measure(error), present(labels.energy), labels.weight)

    def _stress(self, outputs: Outputs, labels: Labels) -> Tensor:
        assert outputs.stress is not None
        difference = to_mandel(residual(outputs.stress, labels.stress))  # turns like a vector
        error = self._measure(difference).mean(-1)
        return weighted_mean(error, present(labels.stress), labels.weight)

    def _measure(self, error: Tensor) -> Tensor:
        if self.robust == "none":
            return error.square()
        if self.robust == "l1":
            return error.abs()
        size = error.abs()
        quadratic = size.clamp(max=self.huber_delta)
        return quadratic.square() + 2 * self.huber_delta * (size - quadratic)
