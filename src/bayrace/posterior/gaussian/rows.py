"""Labels as rows of a regression on the last layer: features, error and noise of single numbers.

Energies are φ · w and forces (-∂φ/∂x) · w, so a label is one row of a linear model. A structure has
3N rows of forces; a few random ones stand for all of them, at the cost of a pass each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Params
from bayrace.core.protocols import LinearModel
from bayrace.data.dataset import Dataset, edge_batches
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, noise, noise_spec_of
from bayrace.posterior.gaussian.last_layer import (
    feature_derivatives,
    pooled_features,
    projected_derivatives,
    structure_features,
)

_EDGES = 10_000  # of a batch
_REAL = torch.float64


class Rows(NamedTuple):
    """n numbers of one quantity that have labels."""

    features: Tensor  # (n, D) float64, derivatives by the last layer
    error: Tensor  # (n,) float64, prediction minus label
    noise_variance: Tensor  # (n,) float64, λ corrected; 0 where the model predicts none
    structures: int  # that they come from


def energy_rows(
    model: LinearModel,
    params: Params,
    data: Dataset,
    *,
    lambdas: Lambdas,
) -> Rows:
    """Every energy label."""
    parts: list[Rows] = []
    for batch, labels in edge_batches(data, like=params, edges=_EDGES):
        with torch.no_grad():
            outputs = evaluate(model, params, batch, forces=False)
            variance = noise(outputs, batch, noise_spec_of(model), lambdas).energy
        error = outputs.energy.double() - labels.energy.double()
        spread = torch.zeros_like(error) if variance is None else variance.double()
        features = structure_features(batch, pooled_features(outputs))
        parts.append(_known(features, error, spread))
    return _joined(parts)


def forces_rows(
    model: LinearModel, params: Params, data: Dataset, *, lambdas: Lambdas, count: int, seed: int
) -> Rows:
    """About `count` force labels: random directions in space of random atoms, as many per frame.

    No more than the largest frame has components: more directions would tell the same again.
    """
    frames = [index for index, frame in enumerate(data.frames) if frame.forces is not None]
    most = max((3 * len(data.frames[index].numbers) for index in frames), default=0)
    each = min(-(-count // max(len(frames), 1)), most)
    random = torch.Generator().manual_seed(seed)
    parts: list[Rows] = []
    for batch, labels in edge_batches(data, like=params, edges=_EDGES, chosen=frames):
        with torch.no_grad():
            outputs = evaluate(model, params, batch)
            covariance = noise(outputs, batch, noise_spec_of(model), lambdas).forces
        error = outputs.forces.double() - labels.forces.double()
        directions = _single_atoms(batch, labels, each, random)
        chosen = directions.square().sum(-1) > 0  # (K, N), one atom of each structure
        turn, atom = chosen.nonzero(as_tuple=True)
        unit, structure = directions[turn, atom], batch.structure_index[atom]
        spread = torch.zeros(len(atom), dtype=_REAL, device=unit.device)
        if covariance is not None:
            spread = torch.einsum("ri,rij,rj->r", unit, covariance[atom].double(), unit)
        features = projected_derivatives(model, params, batch, directions)[turn, structure]
        along = (unit * error[atom]).sum(-1)
        parts.append(Rows(features, along, spread, len(set(structure.tolist()))))
    return _joined(parts)


def stress_rows(model: LinearModel, params: Params, data: Dataset, *, lambdas: Lambdas) -> Rows:
    """The six components of every stress label."""
    frames = [
        index
        for index, frame in enumerate(data.frames)
        if frame.stress is not None and frame.pbc.all()
    ]
    parts: list[Rows] = []
    for batch, labels in edge_batches(data, like=params, edges=_EDGES, chosen=frames):
        with torch.no_grad():
            outputs = evaluate(model, params, batch, stress=True)
            covariance = noise(outputs, batch, noise_spec_of(model), lambdas).stress
        assert outputs.stress is not None
        error = outputs.stress.double() - labels.stress.double()
        directions = torch.eye(6, dtype=_REAL).unsqueeze(1).expand(6, batch.n_structures, 6)
        features = projected_derivatives(model, params, batch, directions, stress=True)
        spread = torch.zeros_like(error)
        if covariance is not None:
            spread = covariance.double().diagonal(dim1=-2, dim2=-1)
        rows = features.transpose(0, 1).flatten(0, 1)
        parts.append(_known(rows, error.flatten(), spread.flatten()))
    found = _joined(parts)
    return found._replace(structures=len(found.error) // 6)


def forces_gram(
    model: LinearModel,
    params: Params,
    data: Dataset,
    *,
    rows: int | None,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """Σ ∂φ ∂φᵀ over all force labels, (D, D) float64; None of `rows` is exact.

    A sum of a structure's rows with random signs r = Σ ± ∂φ has ⟨r rᵀ⟩ = Σ ∂φ ∂φᵀ, so about `rows`
    such sums are an unbiased estimate. They are shared evenly by the structures, or by some of them
    at random where there are more structures; where a share is as many as a structure has
    components, these are taken themselves. `progress` hears the share of structures done.
    """
    frames = [index for index, frame in enumerate(data.frames) if frame.forces is not None]
    random = torch.Generator().manual_seed(seed)
    chosen, each = frames, 0
    if rows is not None:
        chosen = _some(frames, rows, random)
        each = -(-rows // max(len(chosen), 1))
    total: Tensor | float = 0.0
    done = 0
    for batch, labels in edge_batches(data, like=params, edges=_EDGES, chosen=chosen):
        known = ~labels.forces.isnan()
        for part in _gram_rows(model, params, batch, known, each, random):
            total = total + part.T @ part
        done += batch.n_structures
        progress(done * len(data) // len(chosen))
    if not isinstance(total, Tensor):
        raise ValueError("no training frame has forces; LLPR cannot count them")
    return total * (len(frames) / len(chosen))


def _gram_rows(
    model: LinearModel,
    params: Params,
    batch: GraphBatch,
    known: Tensor,
    each: int,
    random: torch.Generator,
) -> Iterator[Tensor]:
    """Rows (n, D): every labelled component, or `each` sums with random signs over √each."""
    if not each or each >= 3 * int(batch.atom_counts().max()):
        slopes = feature_derivatives(model, params, batch).forces.permute(1, 2, 0)
        yield slopes[known]
        return
    drawn = torch.randint(2, (each, *known.shape), generator=random, dtype=_REAL)
    signs = (2 * drawn - 1).to(known.device) * known
    yield projected_derivatives(model, params, batch, signs).flatten(0, 1) / each**0.5


def _single_atoms(batch: GraphBatch, labels: Labels, count: int, random: torch.Generator) -> Tensor:
    """Directions (K, N, 3), each a unit vector on one labelled atom of every structure."""
    known, of = (~labels.forces.isnan().any(-1)).cpu(), batch.structure_index.cpu()
    directions = torch.zeros(count, batch.n_atoms, 3, dtype=_REAL)
    for structure in range(batch.n_structures):
        places = (known & (of == structure)).nonzero().squeeze(1)
        if len(places):
            atoms = places[torch.randint(len(places), (count,), generator=random)]
            vectors = torch.randn(count, 3, generator=random, dtype=_REAL)
            unit = vectors / vectors.norm(dim=-1, keepdim=True)
            directions[torch.arange(count), atoms] = unit
    return directions.to(batch.positions.device)


def _some(frames: Sequence[int], count: int, random: torch.Generator) -> list[int]:
    """At most `count` of them, in their order."""
    if len(frames) <= count:
        return list(frames)
    places = torch.randperm(len(frames), generator=random)[:count]
    return [frames[place] for place in places.sort().values.tolist()]


def _known(features: Tensor, error: Tensor, variance: Tensor) -> Rows:
    known = ~error.isnan()
    return Rows(features[known], error[known], variance[known], int(known.sum()))


def _joined(parts: Sequence[Rows]) -> Rows:
    if not parts:
        empty = torch.zeros(0, dtype=_REAL)
        return Rows(empty.reshape(0, 0), empty, empty, 0)
    return Rows(
        torch.cat([part.features for part in parts]),
        torch.cat([part.error for part in parts]),
        torch.cat([part.noise_variance for part in parts]),
        sum(part.structures for part in parts),
    )
