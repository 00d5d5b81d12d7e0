"""SevenNet (Park 2024) with weights of its own package: `pip install 'bayrace[sevennet]'`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayrace.core.graph import GraphBatch
from bayrace.models.foreign import ForeignSpec, foreign_package, weights_file
from bayrace.models.module import AtomicEnergies, ModuleModel, edge_vectors

LAST = "reduce_hidden_to_energy"  # the last linear map, 64 features of an atom in SevenNet-0
_ONE_HOT = "onehot_idx_to_onehot"
_SCALED = "rescale_atomic_energy"
_ENERGIES = "atomic_energy"
_AFTER = ("reduce_total_enegy", "reduce_total_energy", "force_output")  # what we do ourselves


@dataclass(frozen=True)
class SevenNetSpec(ForeignSpec):
    """A checkpoint of SevenNet."""

    name: ClassVar[str] = "sevennet"
    package: ClassVar[str] = "sevenn"
    in_wheel: ClassVar[tuple[str, ...]] = ("7net-0", "7net-0_22may2024", "7net-l3i5")

    @classmethod
    def locate(cls, weights: str) -> Path:
        """The checkpoint in the wheel, or the user's."""
        util = foreign_package("sevenn.util", extra="sevennet")
        if weights in cls.in_wheel:
            return Path(util.pretrained_name_to_path(weights))
        return weights_file(weights, package="SevenNet", names=cls.in_wheel)

    @classmethod
    def describe(cls, path: Path) -> tuple[frozenset[int], float]:
        """Elements and cutoff of a checkpoint."""
        config = _checkpoint(path).config
        return frozenset(config["_type_map"]), float(config["cutoff"])

    def load(self, path: Path) -> ModuleModel:
        """The network of a checkpoint."""
        network = _checkpoint(path).build_model()
        if network.modal_map:
            raise ValueError(f"{self.weights} has several fidelities, which are not supported here")
        return ModuleModel(
            SevenNet(network, self.elements),
            elements=self.elements,
            cutoff=self.cutoff,
            last=[f"network.{LAST}.linear.weight"],
        )


class SevenNet(nn.Module):
    """Its layers one after another, up to the energies of atoms."""

    def __init__(self, network: Any, elements: tuple[int, ...]) -> None:
        super().__init__()
        for name in _AFTER:
            network.delete_module_by_key(name)
        self.network = network
        index = torch.tensor([network.type_map[z] for z in elements])
        self.register_buffer("index", index, persistent=False)

    def forward(self, batch: GraphBatch) -> AtomicEnergies:
        """Energies and the features of the last linear map."""
        vectors = edge_vectors(batch)
        index: Tensor = self.get_buffer("index")[batch.species]
        data = {
            "x": index,
            "edge_index": batch.edges,
            "edge_vec": vectors,
            "edge_length": torch.linalg.vector_norm(vectors, dim=-1),
            "batch": batch.structure_index,
        }
        features = vectors
        for name, layer in self.network.named_children():
            if name == LAST:
                features = data["x"]
            data = layer(data)
            if name == _ONE_HOT:  # is float32 whatever the weights are
                data = {key: _like(value, vectors) for key, value in data.items()}
        return AtomicEnergies(data[_ENERGIES].squeeze(-1), self._weighted(features, index))

    def _weighted(self, features: Tensor, index: Tensor) -> Tensor:
        """Features as energies depend on them: with the norm of the map and the element's scale."""
        scale: Tensor = getattr(self.network, _SCALED).scale
        each = scale[index][:, None] if scale.numel() > 1 else scale
        return features * (each / math.sqrt(features.shape[-1]))


def _like(value: Tensor, other: Tensor) -> Tensor:
    return value.to(other.dtype) if value.is_floating_point() else value


def _checkpoint(path: Path) -> Any:
    return foreign_package("sevenn.util", extra="sevennet").load_checkpoint(str(path))


METHODS = (SevenNetSpec,)
