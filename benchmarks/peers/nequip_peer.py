"""NequIP behind the calls of the benchmarks."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from ase import Atoms
from ase.data import chemical_symbols
from common import Predicted, Statistics
from nequip.data import AtomicDataDict, from_ase
from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform
from nequip.model import NequIPGNNModel
from nequip.utils.global_state import set_global_state

LAYERS = {"l_max": 2, "parity": False, "num_features": 32}


class NequipPeer:
    """NequIPGNNModel with its own defaults but for layers, degree, parity and features.

    The preset S is that of nequip 0.19. A size that ends in `-compiled` is trained through
    torch.compile, as `compile_mode: compile` does.
    """

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "nequip-s": {
            "num_layers": 2,
            "l_max": 1,
            "parity": False,
            "num_features": [128, 64],
            "type_embed_num_features": 32,
        },
        "nequip-2": {"num_layers": 2, **LAYERS},
        "nequip-3": {"num_layers": 3, **LAYERS},
        "nequip-paper": {"num_layers": 5, "l_max": 2, "parity": True, "num_features": 64},
    }
    sizes |= {f"{name}-compiled": size for name, size in sizes.items()}
    weights = (1.0, 1.0)
    ema = 0.999

    def build(self, size: str, statistics: Statistics, seed: int) -> torch.nn.Module:
        set_global_state()
        symbols = [chemical_symbols[z] for z in statistics.elements]
        return NequIPGNNModel(
            seed=seed,
            model_dtype="float32",
            compile_mode="compile" if size.endswith("-compiled") else "eager",
            r_max=statistics.cutoff,
            type_names=symbols,
            avg_num_neighbors=statistics.mean_neighbours,
            per_type_energy_scales=statistics.force_rms,
            per_type_energy_shifts=dict(zip(symbols, statistics.references, strict=True)),
            **self.sizes[size],
        )

    def graphs(self, frames: list[Atoms], statistics: Statistics) -> list[Any]:
        symbols = [chemical_symbols[z] for z in statistics.elements]
        types = ChemicalSpeciesToAtomTypeMapper(symbols)
        neighbours = NeighborListTransform(r_max=statistics.cutoff)
        return [neighbours(types(from_ase(atoms))) for atoms in frames]

    def collate(self, graphs: list[Any]) -> Any:
        return AtomicDataDict.batched_from_list(graphs)

    def predict(self, model: torch.nn.Module, batch: Any, *, training: bool) -> Predicted:
        model.train(training)
        labels = (AtomicDataDict.TOTAL_ENERGY_KEY, AtomicDataDict.FORCE_KEY)
        inputs = {name: value for name, value in batch.items() if name not in labels}
        output = model(inputs)
        return Predicted(
            energy=output[labels[0]].flatten(),
            forces=output[labels[1]],
            energy_label=batch[labels[0]].flatten() if labels[0] in batch else torch.empty(0),
            forces_label=batch[labels[1]] if labels[1] in batch else torch.empty(0),
            atoms=batch[AtomicDataDict.NUM_NODES_KEY].flatten(),
        )

    def parameter_groups(self, model: torch.nn.Module, lr: float) -> list[dict[str, Any]]:
        return [{"params": list(model.parameters()), "lr": lr}]
