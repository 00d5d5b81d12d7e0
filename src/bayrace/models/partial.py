"""A trained network of which only the last layer moves; the rest is fixed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Heads, Params
from bayrace.core.protocols import LinearModel


@dataclass(frozen=True, eq=False)
class LastLayerOnly:
    """The tensors that hold the last layer are its parameters; implements `Model`."""

    model: LinearModel
    weights: Params  # of the whole network

    @property
    def cutoff(self) -> float:
        """Å."""
        return self.model.cutoff

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers in ascending order."""
        return self.model.elements

    @property
    def free(self) -> Params:
        """The tensors that move, as they are."""
        last = self.model.last_layer(self.weights)
        other = self.model.with_last_layer(self.weights, last + 1)
        return {k: v for k, v in self.weights.items() if not torch.equal(v, other[k])}

    def init(
        self,
        seed: int,  # noqa: ARG002 - they are trained already
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Params:
        """The tensors that move, as they are."""
        return {name: value.to(dtype=dtype, device=device) for name, value in self.free.items()}

    def energy(self, params: Params, batch: GraphBatch) -> Heads:
        """Energies of the whole network."""
        return self.model.energy(self.merged(params), batch)

    def merged(self, params: Params) -> Params:
        """Weights of the whole network with these last ones."""
        return {**self.weights, **params}
