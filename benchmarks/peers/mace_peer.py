"""MACE behind the calls of the benchmarks."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

import numpy as np
import torch
from ase import Atoms
from common import Predicted, Statistics

torch.serialization.add_safe_globals([slice])  # e3nn 0.4.4 loads its constants from a pickle

from e3nn import o3  # noqa: E402
from mace import data, modules, tools  # noqa: E402
from mace.tools.scripts_utils import get_params_options  # noqa: E402
from mace.tools.torch_geometric.batch import Batch  # noqa: E402

KEYS = data.KeySpecification(info_keys={"energy": "energy"}, arrays_keys={"forces": "forces"})


class MacePeer:
    """ScaleShiftMACE with the defaults of `mace_run_train`, but for its hidden irreps."""

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "mace-32": {"hidden_irreps": "32x0e+32x1o"},
        "mace-64": {"hidden_irreps": "64x0e+64x1o"},
        "mace-128": {"hidden_irreps": "128x0e+128x1o"},
    }
    weights = (1.0, 100.0)
    ema = 0.99

    def build(self, size: str, statistics: Statistics, seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return modules.ScaleShiftMACE(
            r_max=statistics.cutoff,
            num_bessel=8,
            num_polynomial_cutoff=5,
            max_ell=3,
            interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
            interaction_cls_first=modules.interaction_classes[
                "RealAgnosticResidualInteractionBlock"
            ],
            num_interactions=2,
            num_elements=len(statistics.elements),
            hidden_irreps=o3.Irreps(self.sizes[size]["hidden_irreps"]),
            MLP_irreps=o3.Irreps("16x0e"),
            atomic_energies=np.array(statistics.references),
            avg_num_neighbors=statistics.mean_neighbours,
            atomic_numbers=statistics.elements,
            correlation=3,
            gate=torch.nn.functional.silu,
            radial_MLP=[64, 64, 64],
            atomic_inter_scale=statistics.force_rms,
            atomic_inter_shift=0.0,
        )

    def graphs(self, frames: list[Atoms], statistics: Statistics) -> list[Any]:
        table = tools.AtomicNumberTable(statistics.elements)
        graphs = []
        for atoms in frames:
            copy = atoms.copy()
            if atoms.calc is not None:
                copy.info["energy"] = atoms.get_potential_energy()
                copy.arrays["forces"] = atoms.get_forces()
            configuration = data.config_from_atoms(copy, key_specification=KEYS)
            graphs.append(
                data.AtomicData.from_config(
                    configuration, z_table=table, cutoff=statistics.cutoff, heads=["Default"]
                )
            )
        return graphs

    def collate(self, graphs: list[Any]) -> Any:
        return Batch.from_data_list(graphs)

    def predict(self, model: torch.nn.Module, batch: Any, *, training: bool) -> Predicted:
        output = model(batch.to_dict(), training=training, compute_force=True)
        return Predicted(
            energy=output["energy"],
            forces=output["forces"],
            energy_label=batch.energy,
            forces_label=batch.forces,
            atoms=batch.ptr.diff(),
        )

    def parameter_groups(self, model: torch.nn.Module, lr: float) -> list[dict[str, Any]]:
        options = argparse.Namespace(
            lr=lr, weight_decay=5e-7, amsgrad=True, beta=0.9, freeze=None, lr_params_factors="{}"
        )
        return get_params_options(options, model)["params"]
