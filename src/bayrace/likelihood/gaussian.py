"""Gaussian likelihoods with predicted noise: NLL_E and NLL_JEF (docs/theory.md, Losses).

λ multiplies only the quadratic terms: λ Δᵀ Σ⁻¹ Δ + log det Σ. The optimum therefore has
Σ = λ · (error covariance), and `bayrace.models.noise.noise` divides by λ again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import LossParts, Outputs
from bayrace.likelihood.mse import SquaredError
from bayrace.likelihood.weights import atom_weight, present, residual, weighted_mean
from bayrace.models.noise import Lambdas, NoiseSpec, energy_variance, members_variance
from bayrace.nn.covariance import log_determinant, mahalanobis, to_mandel

_FLOOR = 1e-8  # eV²: members that agree exactly must not make the likelihood infinite


@dataclass(frozen=True)
class GaussianNoise:
    """Negative log-likelihood of energies (NLL_E) or of energies and forces (NLL_JEF).

    `noise.kind` decides: "energy" models the energy's noise and takes forces by squared error,
    "joint" models both; "shallow" is "energy" with the spread of members in the noise's place.
    `beta` > 0 weighs every term by σ^(2β) (β-NLL), which keeps well-predicted samples from
    dominating. In `warmup` the means follow squared errors while the noise heads learn from
    residuals that do not move the means.
    """

    noise: NoiseSpec
    lambdas: Lambdas
    beta: float
    warmup: bool

    def loss(self, outputs: Outputs, labels: Labels, batch: GraphBatch) -> LossParts:
        """Total and its parts; missing labels do not count."""
        squares = SquaredError(self.lambdas, per_atom_energy=False, robust="none", huber_delta=1.0)
        if self.warmup:
            means = squares.loss(outputs, labels, batch)
            noise = replace(self, warmup=False).loss(_frozen_means(outputs), labels, batch)
            parts = {name: means.parts[name] + noise.parts[name] for name in means.parts}
            return LossParts(means.total + noise.total, parts)
        parts = {"energy": self._energy(outputs, labels, batch)}
        if self.noise.kind == "joint":
            parts["forces"] = self._forces(outputs, labels, batch)
        else:
            parts["forces"] = self.lambdas.forces * squares.forces(outputs, labels, batch)
        if outputs.stress is not None:
            if outputs.stress_head is None:
                parts["stress"] = squares.loss(outputs, labels, batch).parts["stress"]
            else:
                parts["stress"] = self._stress(outputs, labels)
        return LossParts(torch.stack([part.double() for part in parts.values()]).sum(), parts)

    def score(self) -> GaussianNoise:
        """The likelihood proper: β-weighted terms shrink with σ and would favour large ones."""
        return replace(self, beta=0.0, warmup=False)

    def _energy(self, outputs: Outputs, labels: Labels, batch: GraphBatch) -> Tensor:
        assert outputs.energy_head is not None
        if self.noise.kind == "shallow":
            variance = members_variance(outputs.energy_head, batch) + _FLOOR
        else:
            variance = energy_variance(outputs.energy_head, batch, self.noise.energy)
        error = residual(outputs.energy, labels.energy)
        terms = self._weigh(
            self.lambdas.energy * error.square() / variance + variance.log(), variance.log()
        )
        return weighted_mean(terms, present(labels.energy), labels.weight)

    def _forces(self, outputs: Outputs, labels: Labels, batch: GraphBatch) -> Tensor:
        assert outputs.forces_head is not None
        error = residual(outputs.forces, labels.forces)
        terms = self._multivariate(outputs.forces_head, error, self.lambdas.forces)
        return weighted_mean(terms, present(labels.forces), atom_weight(labels, batch))

    def _stress(self, outputs: Outputs, labels: Labels) -> Tensor:
        assert outputs.stress is not None
        assert outputs.stress_head is not None
        error = to_mandel(residual(outputs.stress, labels.stress))
        terms = self._multivariate(outputs.stress_head, error, self.lambdas.stress)
        return weighted_mean(terms, present(labels.stress), labels.weight)

    def _multivariate(self, head: Tensor, error: Tensor, weight: float) -> Tensor:
        form = self.noise.covariance
        try:
            volume = log_determinant(head, form)
            terms = weight * mahalanobis(head, error, form) + volume
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            # a factor is too large for its precision: training diverges
            return (error.sum(-1) + head.sum(-1)) * torch.nan
        return self._weigh(terms, volume / error.shape[-1])

    def _weigh(self, terms: Tensor, log_variance: Tensor) -> Tensor:
        """β-NLL: multiply by the variance to the power β, held constant."""
        if self.beta == 0:
            return terms
        return terms * (self.beta * log_variance.detach()).exp()


def _frozen_means(outputs: Outputs) -> Outputs:
    return outputs._replace(
        energy=outputs.energy.detach(),
        forces=outputs.forces.detach(),
        stress=None if outputs.stress is None else outputs.stress.detach(),
    )
