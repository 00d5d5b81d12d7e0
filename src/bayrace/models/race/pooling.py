"""From contributions of atoms to a property of their structure (`bayrace.core.target`).

Each pooling writes the property as Σ_i (share_i · a_i + b_i), where a_i are the scalars of the
readout: that is what the last layer is linear in. The norm of a vector d is d̂ · d, so that an atom
contributes what it has along d̂; its share is also the derivative of the norm, which is all that a
linearised posterior asks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.models.race.layout import VECTOR_CHANNELS, LayerLayout
from bayrace.models.race.maps import split
from bayrace.models.race.spec import RaceSpec
from bayrace.nn.irreps import VECTOR
from bayrace.nn.linear import atomwise

OWN_EXTENT = 1.0  # Å², that an atom's second moment has at the centre too
_SHORTEST = 1e-8  # squared length, in the target's unit, below which a vector has no direction


class Pooled(NamedTuple):
    """What each atom adds to the property, float64."""

    atomic: Tensor  # (N,)
    share: Tensor | None  # (N,), its derivative by the atom's scalar; None: 1


def read_vectors(
    layer: LayerLayout, own: Mapping[str, Tensor], features: Tensor, hidden: Tensor
) -> Tensor | None:
    """A vector of each atom (N, 3): 1o channels gated by the hidden scalars; None without any."""
    if "readout.vector" not in own:
        return None
    channels = atomwise(split(features, layer.outputs)[VECTOR], own["readout.vector"])  # (N, 3, G)
    gates = atomwise(hidden, own["readout.vector_gates"])  # (N, G)
    summed: Tensor = (channels * gates.unsqueeze(1)).sum(-1)
    return summed * (1 / math.sqrt(VECTOR_CHANNELS))


def pool(spec: RaceSpec, scalars: Tensor, vectors: Tensor | None, batch: GraphBatch) -> Pooled:
    """Contributions of atoms from their scalars (N,) and vectors (N, 3), float64 both."""
    match spec.target.pooling:
        case "sum":
            return Pooled(scalars, None)
        case "mean":
            share = 1 / batch.atom_counts().to(scalars)[batch.structure_index]
            return Pooled(scalars * share, share)
        case "second_moment":
            charges = torch.tensor(spec.elements, dtype=scalars.dtype, device=scalars.device)
            position = _from_centre(batch, charges[batch.species % len(spec.elements)])
            share = position.square().sum(-1) + OWN_EXTENT
            return Pooled(scalars * share, share)
        case "norm":
            return _norm(scalars, vectors, batch)


def _norm(scalars: Tensor, vectors: Tensor | None, batch: GraphBatch) -> Pooled:
    """Of the sum of q_i (r_i − r̄) + v_i, whose origin does not matter whatever Σ_i q_i is."""
    position = _from_centre(batch, torch.ones_like(scalars))
    atomic = scalars.unsqueeze(-1) * position
    if vectors is not None:
        atomic = atomic + vectors
    total = _summed(atomic, batch)
    unit = total / (total.square().sum(-1, keepdim=True) + _SHORTEST).sqrt()
    along = unit[batch.structure_index]
    return Pooled((atomic * along).sum(-1), (position * along).sum(-1))


def _from_centre(batch: GraphBatch, weights: Tensor) -> Tensor:
    """Positions (N, 3) from the weighted mean position of their structure, Å."""
    position = batch.positions.to(weights)
    centre = _summed(weights.unsqueeze(-1) * position, batch) / _summed(
        weights.unsqueeze(-1), batch
    )
    return position - centre[batch.structure_index]


def _summed(values: Tensor, batch: GraphBatch) -> Tensor:
    """Over the atoms of each structure, (S, ...)."""
    return values.new_zeros(batch.n_structures, values.shape[-1]).index_add(
        0, batch.structure_index, values
    )
