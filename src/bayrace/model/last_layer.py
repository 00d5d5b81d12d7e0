"""What a Gaussian over the last layer's weights says of energies, forces and stress, exactly.

Energies are linear in the last hidden activations, E = φ · w + constants, so a covariance A Aᵀ of
the weights gives var(E) = |Aᵀφ|². Forces are the derivatives of φ · w and so are linear in w too:
their covariance needs one backward pass for each of the K columns of A.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bayrace.model.derivatives import strained, voigt_stress
from bayrace.types import GraphBatch, Model, Outputs, Params, Spread


class LinearModel(Model, Protocol):
    """A model whose energies are linear in some of its weights."""

    def last_layer(self, params: Params) -> Tensor:
        """Those weights, (D,)."""
        ...

    def with_last_layer(self, params: Params, weights: Tensor) -> Params:
        """The same parameters with other weights there."""
        ...


class FeatureDerivatives(NamedTuple):
    """Derivatives of features of structures, of the units of a force and a stress by weight."""

    forces: Tensor  # (K, N, 3) float64, -∂φ_k/∂x
    stress: Tensor | None  # (K, S, 6) float64, (1/V) ∂φ_k/∂strain; nan where not fully periodic


def structure_features(batch: GraphBatch, hidden: Tensor) -> Tensor:
    """Features of structures from those of atoms (N, D): (S, D) float64."""
    zero = hidden.new_zeros(batch.structures, hidden.shape[-1], dtype=torch.float64)
    return zero.index_add(0, batch.owner, hidden.double())


def feature_derivatives(
    model: Model,
    params: Params,
    batch: GraphBatch,
    *,
    factor: Tensor | None = None,
    stress: bool = False,
) -> FeatureDerivatives:
    """Forces and stresses of the features, or of the combinations φ · A by a `factor` A (D, K)."""
    with torch.enable_grad():
        positions = batch.positions.detach().requires_grad_()
        moved, inputs = replace(batch, positions=positions), [positions]
        if stress:
            inputs.append(torch.zeros_like(batch.cell, requires_grad=True))
            moved = strained(moved, inputs[1])
        detached = {name: value.detach() for name, value in params.items()}
        hidden = _hidden(model.energy(detached, moved).hidden)
        features = hidden if factor is None else hidden @ factor.to(hidden)
        total = features.sum(0)  # structures do not see each other, so neither do their derivatives
        rows = list(_rows(total, inputs))
    forces = -torch.stack([row[0] for row in rows]).double()
    if not stress:
        return FeatureDerivatives(forces, None)
    virial = torch.stack([row[1] for row in rows]).double()
    return FeatureDerivatives(forces, torch.stack([voigt_stress(v, batch) for v in virial]))


def last_layer_spread(
    factor: Tensor,
    model: Model,
    params: Params,
    batch: GraphBatch,
    outputs: Outputs,
    *,
    forces: bool,
    stress: bool,
) -> Spread:
    """Variances of a batch for the weight covariance `factor` @ `factor`.T, a factor (D, K).

    Energies cost a product of matrices; forces and stress K backward passes.
    """
    features = structure_features(batch, _hidden(outputs.hidden))
    energy = (features @ factor.double()).square().sum(-1)
    if not forces and not stress:
        return Spread(energy, None, None)
    slopes = feature_derivatives(model, params, batch, factor=factor, stress=stress)
    return Spread(
        energy,
        torch.einsum("kni,knj->nij", slopes.forces, slopes.forces) if forces else None,
        None if slopes.stress is None else torch.einsum("ksi,ksj->sij", *[slopes.stress] * 2),
    )


def _rows(total: Tensor, inputs: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    for place in range(len(total)):
        yield torch.autograd.grad(
            total[place], inputs, retain_graph=place + 1 < len(total), materialize_grads=True
        )


def _hidden(hidden: Tensor | None) -> Tensor:
    if hidden is None:
        raise ValueError(
            "this model's energies are not linear in its last hidden activations (activation "
            "relu); use an ensemble or SWAG, or a model with activation: identity"
        )
    return hidden
