"""Forces and stress as derivatives of a model's energy, taken outside the model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bayrace.types import GraphBatch, Heads, Model, Outputs, Params

# rows and columns of the Voigt order xx, yy, zz, yz, xz, xy
_ROW = (0, 1, 2, 1, 0, 0)
_COLUMN = (0, 1, 2, 2, 2, 1)


def evaluate(
    model: Model,
    params: Params,
    batch: GraphBatch,
    *,
    forces: bool = True,
    stress: bool = False,
) -> Outputs:
    """Energy, forces -∂E/∂x and stress (1/V) ∂E/∂strain of one weight sample.

    Differentiable in the parameters and free of side effects: it composes with torch.func.
    Without `forces` the forces are nan. The stress is nan where a structure is not fully periodic.
    """
    if not forces and not stress:
        heads = model.energy(params, batch)
        return _outputs(heads, torch.full_like(batch.positions, torch.nan), None)

    if not stress:

        def energy_at(positions: Tensor) -> tuple[Tensor, Heads]:
            heads = model.energy(params, replace(batch, positions=positions))
            return heads.energy.sum(), heads

        gradient, heads = torch.func.grad(energy_at, has_aux=True)(batch.positions)
        return _outputs(heads, -gradient, None)

    def energy_under(positions: Tensor, strain: Tensor) -> tuple[Tensor, Heads]:
        symmetric = (strain + strain.mT) / 2
        moved = torch.einsum("ni,nij->nj", positions, symmetric[batch.owner])
        deformed = replace(
            batch, positions=positions + moved, cell=batch.cell + batch.cell @ symmetric
        )
        heads = model.energy(params, deformed)
        return heads.energy.sum(), heads

    differentiate = torch.func.grad(energy_under, argnums=(0, 1), has_aux=True)
    (gradient, virial), heads = differentiate(batch.positions, torch.zeros_like(batch.cell))
    tensor = virial / batch.volume[:, None, None]
    return _outputs(heads, -gradient, tensor[:, _ROW, _COLUMN])


def _outputs(heads: Heads, forces: Tensor, stress: Tensor | None) -> Outputs:
    return Outputs(
        energy=heads.energy,
        atomic_energy=heads.atomic_energy,
        forces=forces,
        stress=stress,
        energy_head=heads.energy_head,
        forces_head=heads.forces_head,
        stress_head=heads.stress_head,
    )
