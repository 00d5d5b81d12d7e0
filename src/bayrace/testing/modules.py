"""A small network as other packages have them: it knows nothing of bayrace but its graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from bayrace.core.graph import GraphBatch
from bayrace.models.module import AtomicEnergies, ModuleModel, edge_vectors


class Tiny(nn.Module):
    """Gaussians of distances, summed over neighbours, through a perceptron."""

    def __init__(self, kinds: int, cutoff: float, *, seed: int, told: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.cutoff, self.told = cutoff, told
        self.centres = nn.Buffer(torch.linspace(0.8, cutoff, 6))
        self.charge = nn.Parameter(1 + torch.rand(kinds, generator=generator))
        self.hidden = nn.Linear(7, 10)
        self.out = nn.Linear(10, 1)
        with torch.no_grad():
            for part in (*self.hidden.parameters(), *self.out.parameters()):
                part.copy_(0.5 * torch.randn(part.shape, generator=generator))

    def forward(self, batch: GraphBatch) -> AtomicEnergies:
        """Energies, and what the last map reads, times a factor that should be 1."""
        receiver, sender = batch.edges
        length = torch.linalg.vector_norm(edge_vectors(batch), dim=-1)[:, None]
        smooth = (0.5 * (1 + torch.cos(torch.pi * length / self.cutoff))) ** 2
        basis = torch.exp(-4 * (length - self.centres) ** 2) * smooth
        weighted = basis * self.charge[batch.species[sender]][:, None]
        zero = weighted.new_zeros(batch.n_atoms, weighted.shape[1])
        summed = zero.index_add(0, receiver, weighted)
        own = torch.cat([summed, self.charge[batch.species][:, None]], dim=-1)
        features = torch.tanh(self.hidden(own))
        return AtomicEnergies(self.out(features).squeeze(-1), self.told * features)


@dataclass(frozen=True)
class TinySpec:
    """What a file stores of it."""

    name: ClassVar[str] = "tiny-foreign"
    elements: tuple[int, ...]  # atomic numbers, ascending
    cutoff: float  # Å
    seed: int  # of the weights

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`."""
        return cls(**{**values, "elements": tuple(values["elements"])})

    def build(self) -> ModuleModel:
        """The network with the weights of its seed."""
        module = Tiny(len(self.elements), self.cutoff, seed=self.seed)
        return ModuleModel(module, elements=self.elements, cutoff=self.cutoff, last=["out.weight"])
