"""A pair potential that is linear in its parameters, so that its posterior is known exactly.

E = Σ_i E_i with E_i = ½ Σ_j w(Z_i, Z_j) · φ(r_ij), φ_n Bessel waves under a smooth envelope. It is
for tests of training and posteriors, not for chemistry.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Heads, Params
from bayrace.models.noise import NO_NOISE, NoiseSpec
from bayrace.nn.covariance import FORCES_NUMBERS
from bayrace.nn.radial import bessel_basis

_POWER = 2  # of the envelope


@dataclass(frozen=True)
class PairModel:
    """Bessel functions per unordered pair of elements; implements `bayrace.core.protocols.Model`.

    With noise, each head is one learnable number for all atoms: the logarithm of the energy
    variance, and, for a joint spec, that of an isotropic force covariance.
    """

    elements: tuple[int, ...]  # atomic numbers, ascending
    cutoff: float  # Å
    functions: int  # per pair of elements
    noise_spec: NoiseSpec = NO_NOISE

    def __post_init__(self) -> None:
        if self.noise_spec.stress:
            raise ValueError("PairModel has no stress noise; use a NoiseSpec with stress=False")

    def init(
        self,
        seed: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Params:
        """Small random weights (pairs, functions), eV; log-variances 0."""
        generator = torch.Generator().manual_seed(seed)
        pairs = len(self.elements) * (len(self.elements) + 1) // 2
        weights = torch.randn(pairs, self.functions, generator=generator, dtype=torch.float64)
        params = {"weights": 0.1 * weights}
        if self.noise_spec.kind != "none":
            params["energy_noise"] = torch.zeros(())
        if self.noise_spec.kind == "joint":
            params["forces_noise"] = torch.zeros(())
        return {name: value.to(device=device, dtype=dtype) for name, value in params.items()}

    def energy(self, params: Params, batch: GraphBatch) -> Heads:
        """Energies as a pure function of parameters and graph."""
        features = self.features(batch)
        atomic = (features * params["weights"]).sum((1, 2))
        zero = torch.zeros(batch.structures, dtype=atomic.dtype, device=atomic.device)
        return Heads(
            energy=zero.index_add(0, batch.owner, atomic),
            atomic_energy=atomic,
            energy_head=self._energy_head(params, batch),
            forces_head=self._forces_head(params, batch),
            stress_head=None,
            last_features=features.flatten(1),
        )

    def last_layer(self, params: Params) -> Tensor:
        """All weights, (pairs · functions,): the model is nothing but a last layer."""
        return params["weights"].flatten()

    def with_last_layer(self, params: Params, weights: Tensor) -> Params:
        """The same parameters but for the weights."""
        return {**params, "weights": weights.reshape(params["weights"].shape)}

    def noise_weights(self, params: Params) -> Params:
        """Masks of the log-variances, which are all that moves noise."""
        return {name: torch.ones_like(value) for name, value in params.items() if name != "weights"}

    def features(self, batch: GraphBatch) -> Tensor:
        """Derivative of each atom's energy by the weights: (N, pairs, functions)."""
        receiver, sender = batch.edges
        cell = batch.cell[batch.owner[receiver]]
        offset = torch.einsum("ei,eij->ej", batch.shifts, cell)
        vector = batch.positions[sender] - batch.positions[receiver] + offset
        distance = torch.linalg.vector_norm(vector, dim=-1)
        basis = bessel_basis(distance, cutoff=self.cutoff, count=self.functions, power=_POWER)
        first, second = batch.species[receiver], batch.species[sender]
        low, high = torch.minimum(first, second), torch.maximum(first, second)
        pairs = len(self.elements) * (len(self.elements) + 1) // 2
        place = receiver * pairs + high * (high + 1) // 2 + low
        zero = torch.zeros(
            batch.atoms * pairs, self.functions, dtype=basis.dtype, device=basis.device
        )
        total = zero.index_add(0, place, 0.5 * basis)
        return total.reshape(batch.atoms, pairs, self.functions)

    def _energy_head(self, params: Params, batch: GraphBatch) -> Tensor | None:
        if self.noise_spec.kind == "none":
            return None
        return params["energy_noise"].expand(batch.atoms)

    def _forces_head(self, params: Params, batch: GraphBatch) -> Tensor | None:
        """The log-variance as the form writes it: its level, or the logarithms of three σ."""
        if self.noise_spec.kind != "joint":
            return None
        form = self.noise_spec.covariance
        share = [1.0, 0.0, 0.0] if form == "equivariant" else [0.5, 0.5, 0.5]
        value = params["forces_noise"]
        pattern = torch.tensor(
            [*share, *[0.0] * (FORCES_NUMBERS - 3)], dtype=value.dtype, device=value.device
        )
        return (value * pattern).expand(batch.atoms, FORCES_NUMBERS)
