"""MACE (Batatia 2022) from a file of its own package: `pip install 'bayrace[mace]'`.

Every layer has a readout, and energies are linear in the last weights of each of them; the features
of all readouts stand side by side. MACE's files are pickles, which run what is in them when they
are read: take them from those you trust.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayrace.core.graph import GraphBatch
from bayrace.models.foreign import ForeignSpec, foreign_package, weights_file
from bayrace.models.module import AtomicEnergies, ModuleModel, edge_vectors, inputs_of


@dataclass(frozen=True)
class MaceSpec(ForeignSpec):
    """A model that MACE has saved."""

    name: ClassVar[str] = "mace"
    package: ClassVar[str] = "mace-torch"

    @classmethod
    def locate(cls, weights: str) -> Path:
        """The user's file; the wheel brings none."""
        return weights_file(weights, package="MACE", names=())

    @classmethod
    def describe(cls, path: Path) -> tuple[frozenset[int], float]:
        """Elements and cutoff of a model."""
        network = _network(path)
        return frozenset(network.atomic_numbers.tolist()), float(network.r_max)

    def load(self, path: Path) -> ModuleModel:
        """The network of a file."""
        network = _network(path)
        last = [f"network.{name}.weight" for name, _ in _last_maps(network)]
        return ModuleModel(
            Mace(network, self.elements), elements=self.elements, cutoff=self.cutoff, last=last
        )


class Mace(nn.Module):
    """Its layers one after another, without the derivatives that it takes itself."""

    def __init__(self, network: Any, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.network = network
        known = network.atomic_numbers.tolist()
        attributes = torch.eye(len(known), dtype=network.r_max.dtype)
        chosen = attributes[[known.index(z) for z in elements]]
        self.register_buffer("attributes", chosen, persistent=False)

    def forward(self, batch: GraphBatch) -> AtomicEnergies:
        """Energies, those of isolated atoms included, and the features of all readouts."""
        network, edges = self.network, batch.edges
        attributes: Tensor = self.get_buffer("attributes")[batch.species]
        isolated = network.atomic_energies_fn(attributes)[:, 0]
        vectors = edge_vectors(batch)
        lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        known = (lengths, attributes, edges, network.atomic_numbers)
        radial, cutoff = network.radial_embedding(*known)
        layers = self._layers(attributes, vectors, radial, cutoff, edges)
        readouts = network.readouts
        read = layers if len(readouts) > 1 else layers[-1:]
        heads = torch.zeros_like(batch.structure_index)
        energy = torch.zeros_like(isolated)
        if hasattr(network, "pair_repulsion"):
            energy = energy + network.pair_repulsion_fn(*known)
        features = []
        for readout, hidden in zip(readouts, read, strict=True):
            last = _last_map(readout)[1]
            with inputs_of(last) as seen:
                energy = energy + readout(hidden, heads)[:, 0]
            features.append(_scalars(last, seen[0]))
        scaled, scale = energy, 1.0
        if hasattr(network, "scale_shift"):
            scaled, scale = network.scale_shift(energy, heads), network.scale_shift.scale
        return AtomicEnergies(isolated + scaled, torch.cat(features, dim=-1) * scale)

    def _layers(
        self, attributes: Tensor, vectors: Tensor, radial: Tensor, cutoff: Any, edges: Tensor
    ) -> list[Tensor]:
        """What every layer says of the atoms."""
        network = self.network
        harmonics = network.spherical_harmonics(vectors)
        hidden = network.node_embedding(attributes)
        found = []
        for number, (interaction, product) in enumerate(
            zip(network.interactions, network.products, strict=True)
        ):
            hidden, skip = interaction(
                node_attrs=attributes,
                node_feats=hidden,
                edge_attrs=harmonics,
                edge_feats=radial,
                edge_index=edges,
                cutoff=cutoff,
                first_layer=number == 0,
            )
            hidden = product(node_feats=hidden, sc=skip, node_attrs=attributes)
            found.append(hidden)
        return found


def _network(path: Path) -> Any:
    models = foreign_package("mace.modules.models", extra="mace")
    network = torch.load(path, map_location="cpu", weights_only=False)
    if type(network) not in (models.MACE, models.ScaleShiftMACE):
        raise ValueError(
            f"{path} holds a {type(network).__name__}; give a MACE or ScaleShiftMACE that predicts "
            "energies and forces"
        )
    if len(network.heads) > 1 or hasattr(network, "joint_embedding"):
        raise ValueError(
            f"{path} has several heads or reads charges and spins, which is not supported here; "
            "extract one head with mace_select_head"
        )
    return network


def _last_maps(network: Any) -> Iterator[tuple[str, Any]]:
    for number, readout in enumerate(network.readouts):
        name, part = _last_map(readout)
        yield f"readouts.{number}.{name}", part


def _last_map(readout: Any) -> tuple[str, Any]:
    name = "linear_2" if hasattr(readout, "linear_2") else "linear"
    return name, getattr(readout, name)


def _scalars(linear: Any, hidden: Tensor) -> Tensor:
    """The part of its input that an invariant map reads, with its norm."""
    kept = [
        hidden[:, part]
        for (_, irrep), part in zip(linear.irreps_in, linear.irreps_in.slices(), strict=True)
        if irrep.l == 0 and irrep.p == 1
    ]
    scalars = torch.cat(kept, dim=-1)
    return scalars * (1 / math.sqrt(scalars.shape[-1]))


METHODS = (MaceSpec,)
