"""torch-sim: a potential as its model, for dynamics and relaxation of many structures at once.

    model = torch_sim_model("model.bayrace")
    relaxed = torch_sim.optimize(structures, model, optimizer=torch_sim.optimizers.fire)

Beside energy, forces and stress the model returns standard deviations: `energy_uncertainty` (S,),
`forces_uncertainty` (N, 3), and `stress_uncertainty` (S, 6) in Voigt order, in their units.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import bare_frame
from bayrace.potential.opened import opened
from bayrace.potential.potential import Potential
from bayrace.predict.predict import Uncertainty


def torch_sim_model(
    potential: str | Path | Potential,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    uncertainty: bool = True,
) -> Any:
    """A torch_sim ModelInterface; without `uncertainty` closed forms are quicker."""
    try:
        from torch_sim.models.interface import ModelInterface
    except ImportError as error:
        raise ValueError("torch-sim is not installed; pip install 'bayrace[engines]'") from error
    loaded = opened(potential, device=device, dtype=dtype)

    class BayraceModel(ModelInterface):  # type: ignore[misc]
        """Our potential behind torch-sim's interface."""

        def __init__(self) -> None:
            super().__init__()
            self._device, self._dtype = loaded.device, loaded.dtype
            self._compute_forces = self._compute_stress = True
            self.potential = loaded

        def forward(self, state: Any, **_: Any) -> dict[str, torch.Tensor]:
            """Energies, forces, stresses and standard deviations of a state."""
            return _predict(loaded, state, uncertainty=uncertainty)

    return BayraceModel()


def _predict(potential: Potential, state: Any, *, uncertainty: bool) -> dict[str, torch.Tensor]:
    value = state.__getitem__ if isinstance(state, dict) else lambda name: getattr(state, name)
    positions = value("positions").detach().double().cpu().numpy()
    rows = value("cell").detach().double().cpu().mT.contiguous().numpy()  # theirs has columns
    numbers = value("atomic_numbers").cpu().numpy().astype(np.int64)
    systems = value("system_idx").cpu().numpy()
    pbc = np.broadcast_to(np.asarray(torch.as_tensor(value("pbc")).cpu()), (3,))
    model = potential.model
    graphs = []
    for system in range(len(rows)):
        chosen = systems == system
        frame = bare_frame(
            numbers[chosen], positions[chosen], rows[system], pbc, source="state", index=system
        )
        graphs.append(build_graph(frame, elements=model.elements, cutoff=model.cutoff))
    batch = collate(
        graphs,
        elements_count=len(model.elements),
        dtype=potential.dtype,
        device=potential.device,
    )
    level: Uncertainty = "full" if uncertainty else "none"
    prediction = potential.predict_batch(batch, stress=bool(pbc.all()), uncertainty=level)
    kind = value("positions")
    result = {"energy": prediction.energy.mean, "forces": prediction.forces.mean}
    if prediction.stress is not None:
        result["stress"] = prediction.stress.mean[:, [[0, 5, 4], [5, 1, 3], [4, 3, 2]]]
    else:
        result["stress"] = torch.zeros(len(rows), 3, 3)
    if uncertainty:
        result["energy_uncertainty"] = prediction.energy.std
        result["forces_uncertainty"] = prediction.forces.std
        if prediction.stress is not None:
            result["stress_uncertainty"] = prediction.stress.std
    return {name: each.detach().to(kind) for name, each in result.items()}
