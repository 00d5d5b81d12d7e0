"""The features of atoms that training has seen, and how far others are from them.

Features are the last hidden activations of the network; each element has its own mean and
covariance of them. An element with few atoms borrows from the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.outputs import Outputs, Params
from bayrace.core.protocols import Model
from bayrace.data.dataset import Dataset, edge_batches
from bayrace.models.derivatives import evaluate
from bayrace.posterior.gaussian.last_layer import pooled_features, structure_features
from bayrace.posterior.novelty import MeanMoments, mean_moments

_EDGES = 10_000  # of a batch
_PRIOR_ATOMS = 10  # that an element borrows from the others
_ROUNDING = 1e-12  # of the features' mean square: variances below are those of their last digits


class Seen(NamedTuple):
    """Moments of the features of the training set."""

    atom_counts: Tensor  # (Z,) of each element
    total: Tensor  # (Z, D)
    square: Tensor  # (Z, D, D)
    structures: Tensor  # (D, D), Σ φφᵀ of whole structures
    means: MeanMoments  # of whole structures


def training_features(
    model: Model, params: Params, data: Dataset, progress: Callable[[int], None]
) -> Seen:
    """Moments of all training atoms; `progress` hears how many structures are done."""
    seen: Seen | None = None
    done = 0
    for batch, _ in edge_batches(data, like=params, edges=_EDGES):
        with torch.no_grad():
            outputs = evaluate(model, params, batch, forces=False)
            hidden = hidden_features(outputs).double()
        parts = torch.split(hidden, list(batch.species_counts))
        whole = structure_features(batch, pooled_features(outputs))
        own = Seen(
            torch.tensor(batch.species_counts, device=hidden.device).to(hidden),
            torch.stack([part.sum(0) for part in parts]),
            torch.stack([part.T @ part for part in parts]),
            whole.T @ whole,
            mean_moments(batch, hidden),
        )
        seen = own if seen is None else _added(seen, own)
        done += batch.n_structures
        progress(done)
    if seen is None:
        raise ValueError("no training structure; distances need at least one")
    return seen


def _added(seen: Seen, more: Seen) -> Seen:
    return Seen(
        seen.atom_counts + more.atom_counts,
        seen.total + more.total,
        seen.square + more.square,
        seen.structures + more.structures,
        seen.means.joined(more.means),
    )


def whitened(seen: Seen, regularisation: float) -> tuple[Tensor, Tensor]:
    """Centres (Z, D) and whitening matrices (Z, D, D) of the elements.

    An element borrows the covariance of all, as if some of its atoms had it, so that one with few
    atoms has one at all.
    """
    count = seen.atom_counts.clamp(min=1)[:, None]
    centre = seen.total / count
    own = seen.square / count[..., None] - centre[:, :, None] * centre[:, None, :]
    weight = (seen.atom_counts / seen.atom_counts.sum())[:, None, None]
    pooled = (weight * own).sum(0)
    part = (seen.atom_counts / (seen.atom_counts + _PRIOR_ATOMS))[:, None, None]
    mixed = part * own + (1 - part) * pooled
    values, vectors = torch.linalg.eigh(mixed)
    values = values.clamp(min=0)
    level = values.mean(-1, keepdim=True)
    least = _ROUNDING * (level + centre.square().mean(-1, keepdim=True)).clamp(min=_ROUNDING)
    alike = level <= least  # all atoms, so that any other is far away
    spread = values + regularisation * torch.where(alike, least, level)
    white = vectors / spread.sqrt()[:, None, :]
    usual = (values / spread).sum(-1)  # ⟨m⟩ of training atoms and borrowed ones
    usual = torch.where(alike[:, 0], 1.0, usual)
    return centre, white / usual.sqrt()[:, None, None]


def inverse_root(gram: Tensor, relative: float) -> Tensor:
    """A with A Aᵀ = (C + ςI)⁻¹, (D, D); ς is `relative` to the mean eigenvalue of C."""
    values, vectors = torch.linalg.eigh(gram)
    least = relative * values.clamp(min=0).mean()
    root: Tensor = vectors / (values.clamp(min=0) + least).sqrt()
    return root


def hidden_features(outputs: Outputs) -> Tensor:
    """What the energies of atoms are read from, (N, D)."""
    if outputs.last_features is None:
        raise ValueError(
            "this model does not tell its last hidden activations (activation relu); use "
            "posterior: ensemble or swag for its uncertainty, or posterior: point"
        )
    return outputs.last_features
