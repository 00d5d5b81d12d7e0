"""Forces and stress as derivatives of a model's energy, taken outside the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Heads, Outputs, Params
from bayrace.core.protocols import Differentiated, Model
from bayrace.core.target import target_of
from bayrace.nn.tables import inside_transforms

# rows and columns of the Voigt order xx, yy, zz, yz, xz, xy
_ROW = (0, 1, 2, 1, 0, 0)
_COLUMN = (0, 1, 2, 2, 2, 1)

ROWS_AT_ONCE = 18  # of a Jacobian; half the time of one by one, and a multiple of 3 and 6
"""Of our own networks; others say themselves what suits them (`rows_at_once`)."""


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
    Without `forces`, and for models of other properties than the energy, the forces are nan. The
    stress is nan where a structure is not fully periodic.
    """
    if not (forces or stress) or not target_of(model).is_energy:
        heads = model.energy(params, batch)
        return _outputs(heads, torch.full_like(batch.positions, torch.nan), None)
    outer = inside_transforms() or batch.positions.requires_grad or batch.cell.requires_grad
    if not outer and isinstance(model, Differentiated):
        found = model.derivatives(params, batch)
        if found is not None:
            virial = voigt_stress(found.virial, batch) if stress else None
            return _outputs(found.heads, -found.gradient, virial)
    if batch.first_edge.shape[0] != batch.n_atoms + 1:
        raise ValueError("copies without edges are for compiled networks; repeat the edges too")
    differentiate = _by_transform if outer else _by_tape
    heads, gradient, virial = differentiate(model, params, batch, stress=stress)
    if virial is None:
        return _outputs(heads, -gradient, None)
    return _outputs(heads, -gradient, voigt_stress(virial, batch))


def jacobian(
    values: Tensor, leaves: Params, cotangents: Tensor, *, at_once: int = ROWS_AT_ONCE
) -> Iterator[Params]:
    """Derivatives of cotangents (K, R) @ values (R,) by the leaves, (k, ...) each, in chunks k.

    Chunks hold `at_once` rows, the last one what is left.
    """
    inputs = list(leaves.values())
    for chunk in torch.split(cotangents.to(values), at_once):
        alone = at_once == 1  # without the transform that works on several
        rows = torch.autograd.grad(
            values,
            inputs,
            chunk[0] if alone else chunk,
            is_grads_batched=not alone,
            retain_graph=True,
            materialize_grads=True,
        )
        yield {
            name: row.unsqueeze(0) if alone else row for name, row in zip(leaves, rows, strict=True)
        }


def rows_at_once(model: Model) -> int:
    """How many rows of a Jacobian a network had best be asked for together."""
    return int(getattr(model, "rows_at_once", ROWS_AT_ONCE))


def strained(batch: GraphBatch, strain: Tensor) -> GraphBatch:
    """Positions and cells under the symmetric part of a strain, (S, 3, 3)."""
    symmetric = (strain + strain.mT) / 2
    moved = torch.einsum("ni,nij->nj", batch.positions, symmetric[batch.structure_index])
    return replace(
        batch, positions=batch.positions + moved, cell=batch.cell + batch.cell @ symmetric
    )


def voigt_stress(virial: Tensor, batch: GraphBatch) -> Tensor:
    """(1/V) ∂E/∂strain (S, 6) from ∂E/∂strain (S, 3, 3); nan where not fully periodic."""
    missing = batch.volume.isnan()
    volume = torch.where(missing, torch.ones_like(batch.volume), batch.volume)  # nan * 0 is nan
    tensor = (virial / volume[:, None, None])[:, _ROW, _COLUMN]
    return torch.where(missing[:, None], torch.full_like(tensor, torch.nan), tensor)


_Derivatives = tuple[Heads, Tensor, Tensor | None]
"""Heads, the gradient in positions (N, 3), and in strain (S, 3, 3)."""


def _by_tape(model: Model, params: Params, batch: GraphBatch, *, stress: bool) -> _Derivatives:
    """By torch.autograd: the cheaper way by a quarter, where nobody differentiates positions."""
    learning = any(value.requires_grad for value in params.values())
    differentiable = torch.is_grad_enabled() and learning
    with torch.enable_grad():
        positions = batch.positions.detach().requires_grad_()
        moved, inputs = replace(batch, positions=positions), [positions]
        if stress:
            inputs.append(torch.zeros_like(batch.cell, requires_grad=True))
            moved = strained(moved, inputs[1])
        if learning and not differentiable:
            params = {name: value.detach() for name, value in params.items()}
        heads = model.energy(params, moved)
        gradients = torch.autograd.grad(
            heads.energy.sum(), inputs, create_graph=differentiable, materialize_grads=True
        )
    if not differentiable:
        heads = _ABSENT._replace(
            **{name: value.detach() for name, value in _present(heads).items()}
        )
    return heads, gradients[0], gradients[1] if stress else None


def _by_transform(model: Model, params: Params, batch: GraphBatch, *, stress: bool) -> _Derivatives:
    """By torch.func, inside vmap over members and the like."""

    def energy(positions: Tensor, strain: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        moved = replace(batch, positions=positions)
        heads = model.energy(params, moved if strain is None else strained(moved, strain))
        return heads.energy.sum(), _present(heads)

    if not stress:
        gradient, present = torch.func.grad(energy, has_aux=True)(batch.positions, None)
        return _ABSENT._replace(**present), gradient, None
    (gradient, virial), present = torch.func.grad(energy, argnums=(0, 1), has_aux=True)(
        batch.positions, torch.zeros_like(batch.cell)
    )
    return _ABSENT._replace(**present), gradient, virial


_ABSENT = Heads(torch.empty(0), torch.empty(0), None, None, None, None)


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
        last_features=heads.last_features,
        share=heads.share,
    )
