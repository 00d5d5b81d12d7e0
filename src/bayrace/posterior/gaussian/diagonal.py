"""What a Gaussian with independent weights says of energies, forces and stress, linearised.

For weights θ ~ N(θ*, V) with diagonal V and outputs f(θ) ≈ f(θ*) + J (θ - θ*), the covariance of
the outputs is J V Jᵀ. J costs one backward pass for each component of each force.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances, Params
from bayrace.core.protocols import Model
from bayrace.data.batch import separate
from bayrace.models.derivatives import evaluate, jacobian
from bayrace.posterior.gaussian.curvature import leaves_of


@dataclass(frozen=True, eq=False)
class Diagonal:
    """A mean and a standard deviation for every weight; those of 0 are certain."""

    params: Params  # the mean, without a leading dimension
    std: Params  # like the mean

    @classmethod
    def of_precision(cls, params: Params, places: Tensor, precision: Tensor) -> Self:
        """Variances 1 / precision (P,) at some places (P,), counted in order of names, else 0."""
        ordered = sorted(params.items())
        sizes = [value.numel() for _, value in ordered]
        std = torch.zeros(sum(sizes), dtype=torch.float64)
        std[places] = precision.rsqrt()
        shaped = {
            name: part.reshape(value.shape).to(value)
            for part, (name, value) in zip(torch.split(std, sizes), ordered, strict=True)
        }
        return cls(params, shaped)

    def mean(self) -> Params:
        """The mean weights with a leading dimension of length 1."""
        return {name: value.unsqueeze(0) for name, value in self.params.items()}

    def sample(self, samples: int, *, seed: int) -> Params:
        """Draws of the Gaussian, stacked; the same for every order of names, device and dtype."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {}
        for name in sorted(self.params):
            mean = self.params[name]
            normal = torch.randn(samples, *mean.shape, generator=generator, dtype=torch.float64)
            drawn[name] = mean + self.std[name] * normal.to(mean)
        return {name: drawn[name] for name in self.params}

    def spread(
        self, model: Model, batch: GraphBatch, *, forces: bool, stress: bool
    ) -> EpistemicVariances:
        """Variances of a batch; structures are taken one by one, so that passes stay short."""
        energies, stresses = [], []
        force = batch.positions.new_zeros(batch.atoms, 3, 3, dtype=torch.float64)
        for single, atoms in separate(batch):
            leaves = leaves_of(self.params)
            with torch.enable_grad():
                outputs = evaluate(model, leaves, single, forces=forces, stress=stress)
                energy = outputs.energy.unsqueeze(1)
            energies.append(output_covariance(energy, leaves, self.std)[:, 0, 0])
            if forces:
                force[atoms] = output_covariance(outputs.forces, leaves, self.std)
            if outputs.stress is not None:
                stresses.append(output_covariance(outputs.stress, leaves, self.std))
        return EpistemicVariances(
            torch.cat(energies),
            force if forces else None,
            torch.cat(stresses) if stress else None,
        )

    def tensors(self) -> Params:
        """Everything, by names that `restore` knows."""
        means = {f"params/{name}": value for name, value in self.params.items()}
        return means | {f"std/{name}": value for name, value in self.std.items()}

    @classmethod
    def restore(cls, tensors: Params) -> Self:
        """What `tensors` came from."""
        parts: dict[str, Params] = {"params": {}, "std": {}}
        for key, value in tensors.items():
            kind, name = key.split("/", maxsplit=1)
            parts[kind][name] = value
        return cls(parts["params"], parts["std"])

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        return type(self)(
            {name: value.to(device=device, dtype=dtype) for name, value in self.params.items()},
            {name: value.to(device=device, dtype=dtype) for name, value in self.std.items()},
        )


def flat(values: Params) -> Tensor:
    """All numbers in order of their names, as in `last_layer_places`: (P,) float64 on the CPU."""
    return torch.cat([value.flatten() for _, value in sorted(values.items())]).double().cpu()


def output_covariance(values: Tensor, leaves: Params, std: Params) -> Tensor:
    """J V Jᵀ of each vector of values (n, d), where V = std² is diagonal: (n, d, d) float64.

    d must divide `derivatives.ROWS_AT_ONCE`. What is nan, the stress of a molecule, stays nan.
    """
    count, size = values.shape
    if values.isnan().any():
        return values.new_full((count, size, size), torch.nan, dtype=torch.float64)
    with torch.enable_grad():
        flat = values.flatten()
    parts = []
    for rows in jacobian(flat, leaves, torch.eye(values.numel())):
        part = values.new_zeros(1, size, size, dtype=torch.float64)
        for name, row in rows.items():
            scaled = (row * std[name]).double().reshape(-1, size, row[0].numel())
            part = part + scaled @ scaled.mT
        parts.append(part)
    return torch.cat(parts)
