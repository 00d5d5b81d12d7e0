"""Averages that honour missing labels and per-structure weights."""

from __future__ import annotations

from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels


def present(labels: Tensor) -> Tensor:
    """True where a label is given; over the last dimension for vectors, (S,) or (N,)."""
    known = ~labels.isnan()
    return known if labels.ndim == 1 else known.all(-1)


def residual(prediction: Tensor, label: Tensor) -> Tensor:
    """Prediction minus label, zero where the label is missing, in the prediction's dtype."""
    known = ~label.isnan() & ~prediction.isnan()
    safe = label.to(prediction.dtype).where(known, prediction.new_zeros(()))
    return prediction.where(known, prediction.new_zeros(())) - safe


def weighted_mean(values: Tensor, known: Tensor, weight: Tensor) -> Tensor:
    """Sum of weight · values over known entries, divided by their number; 0 if there is none.

    A weight of 2 therefore counts as two copies would in the numerator, without rescaling others.
    """
    chosen = (values * weight.to(values.dtype)).where(known, values.new_zeros(()))
    return chosen.sum() / known.sum().clamp(min=1)


def atom_weight(labels: Labels, batch: GraphBatch) -> Tensor:
    """Weight of each atom's structure, (N,)."""
    return labels.weight[batch.structure_index]
