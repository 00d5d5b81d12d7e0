"""How firmly data hold the weights: Jacobians of the outputs and the diagonal of JᵀΛJ.

For a Gaussian likelihood the generalised Gauss-Newton matrix is JᵀΛJ: J are the derivatives of the
mean outputs by the weights, Λ is the precision of the noise. Its diagonal is the sum over rows of
the squares of Λ^½J. Rows cost a backward pass each, or random signs stand for all rows at once: the
mean of (JᵀΛ^½s)² over signs s is the same sum, with a relative error of at most
√(2 / (probes · structures)) where the structures contribute alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Params
from bayrace.core.protocols import Model, NoisyModel
from bayrace.models.derivatives import evaluate, jacobian
from bayrace.models.noise import Lambdas
from bayrace.posterior.gaussian.last_layer import (
    feature_derivatives,
    pooled_features,
    structure_features,
)
from bayrace.posterior.gaussian.observed import observe


@dataclass(frozen=True)
class Probes:
    """Random sign vectors in place of all rows of a batch."""

    count: int
    seed: int = 0


def diagonal_ggn(
    model: NoisyModel,
    params: Params,
    data: Iterable[tuple[GraphBatch, Labels]],
    *,
    lambdas: Lambdas,
    probes: Probes | None,
    forces: bool = True,
    stress: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Params]:
    """Diagonal of JᵀΛJ for each of energy, forces and stress, shaped like the weights, float64.

    Λ is the precision of the model's noise, else 1: multiply by the precision you know of. `probes`
    stand for the rows of each batch; None takes every row. A backward pass runs
    through the whole batch, so give batches of one structure. `progress` hears the batches done.
    """
    signs = torch.Generator().manual_seed(probes.seed if probes else 0)
    count = probes.count if probes else None
    total: dict[str, Params] = {}
    for done, (batch, labels) in enumerate(data, start=1):
        leaves = leaves_of(params)
        with torch.enable_grad():
            outputs = evaluate(model, leaves, batch, forces=forces, stress=stress)
        for name, seen in observe(model, outputs, batch, labels, lambdas=lambdas).items():
            with torch.enable_grad():
                values = seen.rows(getattr(outputs, name)).flatten()
            squares = sum_of_squares(values, leaves, probes=count, signs=signs)
            kept = total.setdefault(name, {key: torch.zeros_like(v) for key, v in squares.items()})
            for key, value in squares.items():
                kept[key] += value
        if progress is not None:
            progress(done)
    return total


def last_layer_ggn(
    model: NoisyModel,
    params: Params,
    data: Iterable[tuple[GraphBatch, Labels]],
    *,
    lambdas: Lambdas,
    forces: bool = True,
    stress: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Tensor]:
    """JᵀΛJ over the last layer for each of energy, forces and stress, (D, D) float64.

    As in `diagonal_ggn`; here a pass serves all structures of a batch. `progress` hears structures.
    """
    total: dict[str, Tensor] = {}
    done = 0
    for batch, labels in data:
        with torch.no_grad():
            outputs = evaluate(model, params, batch, forces=forces, stress=stress)
        if outputs.last_features is None:
            raise ValueError("energies are not linear in a last layer; use structure: diagonal")
        values = {"energy": structure_features(batch, pooled_features(outputs))}
        if forces or stress:
            slopes = feature_derivatives(model, params, batch, stress=stress)
            values["forces"] = slopes.forces.permute(1, 2, 0)  # (N, 3, D)
            if slopes.stress is not None:
                values["stress"] = slopes.stress.permute(1, 2, 0)  # (S, 6, D)
        seen = observe(model, outputs, batch, labels, lambdas=lambdas)
        for name, value in values.items():
            rows = seen[name].rows(value).flatten(0, 1)
            total[name] = total.get(name, 0) + rows.T @ rows
        done += batch.structures
        if progress is not None:
            progress(done)
    return total


def leaves_of(params: Params) -> Params:
    """The same weights as leaves of a new graph of gradients."""
    return {name: value.detach().clone().requires_grad_() for name, value in params.items()}


def sum_of_squares(
    values: Tensor, leaves: Params, *, probes: int | None, signs: torch.Generator
) -> Params:
    """Σ_r (∂values_r/∂leaf)² of values (R,), float64; estimated if there are more rows than probes.

    The estimate is unbiased.
    """
    total = {name: torch.zeros_like(v, dtype=torch.float64) for name, v in leaves.items()}
    if not values.numel():
        return total
    if probes is None or probes >= len(values):
        cotangents, share = torch.eye(len(values)), 1.0
    else:
        drawn = torch.randint(2, (probes, len(values)), generator=signs)
        cotangents, share = drawn * 2.0 - 1.0, 1 / probes
    for rows in jacobian(values, leaves, cotangents):
        for name, row in rows.items():
            total[name] += row.double().square().sum(0) * share
    return total


def noise_slopes(model: Model, params: Params, batches: Iterable[GraphBatch]) -> Params:
    """Sizes of the derivatives of the noise heads by the weights; 0 where no head is moved."""
    signs = torch.Generator().manual_seed(0)
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for batch in batches:
        leaves = leaves_of(params)
        with torch.enable_grad():
            found = model.energy(leaves, batch)
        heads = [
            head
            for head in (found.energy_head, found.forces_head, found.stress_head)
            if head is not None
        ]
        if not heads:
            return total
        # random weights of the sum, so that no two of its terms cancel
        weights = [torch.rand(head.shape, generator=signs).to(head) for head in heads]
        slopes = torch.autograd.grad(heads, list(leaves.values()), weights, materialize_grads=True)
        for name, slope in zip(leaves, slopes, strict=True):
            total[name] += slope.abs()
    return total
