"""CHGNet (Deng 2023) with weights of its own package: `pip install 'bayrace[chgnet]'`.

Its energy of an atom is a perceptron of the atom's features and a constant of the element, so that
energies are linear in the perceptron's last weights. Magnetic moments, which it predicts from other
features, are left out.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayrace.core.graph import GraphBatch
from bayrace.models.foreign import ForeignSpec, foreign_package, weights_file
from bayrace.models.module import AtomicEnergies, ModuleModel, edge_vectors, inputs_of

_FILES = {
    "chgnet": "0.3.0",
    "chgnet-0.3.0": "0.3.0",
    "chgnet-0.2.0": "0.2.0",
    "chgnet-r2scan": "r2scan",
}
_MOST = 94  # atomic numbers it has an embedding for


@dataclass(frozen=True)
class ChgnetSpec(ForeignSpec):
    """Weights of CHGNet."""

    name: ClassVar[str] = "chgnet"
    package: ClassVar[str] = "chgnet"
    in_wheel: ClassVar[tuple[str, ...]] = tuple(_FILES)

    @classmethod
    def locate(cls, weights: str) -> Path:
        """The weights in the wheel, or the user's."""
        package = foreign_package("chgnet", extra="chgnet")
        if weights not in _FILES:
            return weights_file(weights, package="CHGNet", names=cls.in_wheel)
        folder = Path(package.__file__).parent / "pretrained" / _FILES[weights]
        (found,) = folder.glob("*.pth.tar")
        return found

    @classmethod
    def describe(cls, path: Path) -> tuple[frozenset[int], float]:
        """Elements and the cutoff of atoms; that of angles is shorter."""
        network = _network(path)
        return frozenset(range(1, _MOST + 1)), float(network.graph_converter.atom_graph_cutoff)

    def load(self, path: Path) -> ModuleModel:
        """The network of a file."""
        network = _network(path)
        place, last = _last_linear(network.mlp)
        if not network.mlp_first or not isinstance(last, nn.Linear):
            raise ValueError(f"{self.weights} has no energies of single atoms; use other weights")
        return ModuleModel(
            Chgnet(network, self.elements),
            elements=self.elements,
            cutoff=self.cutoff,
            last=[f"network.mlp.{place}.weight"],
        )


class Chgnet(nn.Module):
    """The network on our graphs, to which it adds those of bonds that share an atom."""

    def __init__(self, network: Any, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.bond_cutoff = float(network.graph_converter.bond_graph_cutoff)  # Å
        network.graph_converter = None  # ours finds the neighbours
        self.network = network
        self.register_buffer("numbers", torch.tensor(elements), persistent=False)

    def forward(self, batch: GraphBatch) -> AtomicEnergies:
        """Energies, those of the composition included, and the features of the last map."""
        numbers: Tensor = self.get_buffer("numbers")[batch.species]
        with inputs_of(_last_linear(self.network.mlp)[1]) as features:
            found = self.network._compute(self._graph(batch, numbers), return_site_energies=True)
        energy = torch.cat(found["site_energies"])  # split as if sorted by structure; order is kept
        if self.network.composition_model is not None:
            energy = energy + self.network.composition_model.fc.weight[0, numbers - 1]
        return AtomicEnergies(energy, features[0])

    def _graph(self, batch: GraphBatch, numbers: Tensor) -> Any:
        """A batch as CHGNet's own; atoms need not be sorted by structure for it."""
        away = -edge_vectors(batch)  # from the neighbour to the centre
        length = torch.linalg.vector_norm(away, dim=-1)
        along = away / length[:, None]
        first, second = self._angles(batch, length)
        network = self.network
        bonds = length[batch.pair_edges[0]]
        encoder = network.bond_basis_expansion
        angles = network.angle_basis_expansion(along[first], along[second])
        kind = foreign_package("chgnet.model.model", extra="chgnet").BatchedGraph
        return kind(
            atomic_numbers=numbers,
            bond_bases_ag=encoder.rbf_expansion_ag(bonds),
            bond_bases_bg=encoder.rbf_expansion_bg(bonds),
            angle_bases=angles,
            batched_atom_graph=batch.edges.T,
            batched_bond_graph=torch.stack(
                [batch.edges[0, first], batch.pair[first], batch.pair[second]], dim=1
            ),
            atom_owners=batch.structure_index,
            directed2undirected=batch.pair,
            atom_positions=[batch.positions],
            strains=[],
            volumes=batch.volume,
        )

    def _angles(self, batch: GraphBatch, length: Tensor) -> tuple[Tensor, Tensor]:
        """Ordered pairs of short edges that leave one atom, (A,) each."""
        short = (length < self.bond_cutoff).nonzero().squeeze(1)
        count = torch.bincount(batch.edges[0, short], minlength=batch.n_atoms)
        start = count.cumsum(0) - count
        degree = count[batch.edges[0, short]]  # of the atom of each short edge
        first = torch.repeat_interleave(torch.arange(len(short), device=short.device), degree)
        before = degree.cumsum(0) - degree
        rank = torch.arange(len(first), device=short.device) - before[first]
        second = start[batch.edges[0, short]][first] + rank  # edges are sorted by receiver
        other = first != second
        return short[first[other]], short[second[other]]


def _network(path: Path) -> Any:
    model = foreign_package("chgnet.model.model", extra="chgnet").CHGNet
    old = path.parent.name == "0.2.0"  # which has a bias that later ones have not
    with contextlib.redirect_stdout(io.StringIO()):  # it greets
        return model.from_file(str(path), mlp_out_bias=old)


def _last_linear(mlp: nn.Module) -> tuple[str, nn.Module]:
    """The last linear map of a perceptron, with its name in it."""
    return [(name, part) for name, part in mlp.named_modules() if isinstance(part, nn.Linear)][-1]


METHODS = (ChgnetSpec,)
