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

        def energy_at(positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            heads = model.energy(params, replace(batch, positions=positions))
            return heads.energy.sum(), _present(heads)

        gradient, present = torch.func.grad(energy_at, has_aux=True)(batch.positions)
        return _outputs(_ABSENT._replace(**present), -gradient, None)

    def energy_under(positions: Tensor, strain: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        symmetric = (strain + strain.mT) / 2
        moved = torch.einsum("ni,nij->nj", positions, symmetric[batch.owner])
        deformed = replace(
            batch, positions=positions + moved, cell=batch.cell + batch.cell @ symmetric
        )
        heads = model.energy(params, deformed)
        return heads.energy.sum(), _present(heads)

    differentiate = torch.func.grad(energy_under, argnums=(0, 1), has_aux=True)
    (gradient, virial), present = differentiate(batch.positions, torch.zeros_like(batch.cell))
    missing = batch.volume.isnan()
    volume = torch.where(missing, torch.ones_like(batch.volume), batch.volume)  # nan * 0 is nan
    tensor = (virial / volume[:, None, None])[:, _ROW, _COLUMN]
    nowhere = torch.full_like(tensor, torch.nan)
    return _outputs(
        _ABSENT._replace(**present), -gradient, torch.where(missing[:, None], nowhere, tensor)
    )


_ABSENT = Heads(torch.empty(0), torch.empty(0), None, None, None)


def _present(heads: Heads) -> dict[str, Tensor]:
    """The heads that are there; torch.func carries only tensors."""
    return {name: value for name, value in heads._asdict().items() if value is not None}


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
