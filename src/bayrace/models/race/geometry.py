"""The geometry of a batch as the network reads it: distances and directions of its pairs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.nn.harmonics import spherical_harmonics


class Geometry(NamedTuple):
    """What every layer and every member shares."""

    distance: Tensor  # Å, (P,)
    harmonics: Tensor  # (P, (L+1)²), along the first edge of each pair


def geometry_of(batch: GraphBatch, l_max: int) -> Geometry:
    """Distances and spherical harmonics of all pairs, differentiable in positions and cells."""
    forward = batch.pair_edges[0]
    receiver, sender = batch.edges[:, forward]
    cell = batch.cell[batch.structure_index[receiver]]
    offset = torch.einsum("pi,pij->pj", batch.shifts[forward], cell)
    vector = batch.positions[sender] - batch.positions[receiver] + offset
    distance = vector.square().sum(-1).sqrt()
    return Geometry(distance, spherical_harmonics(vector / distance.unsqueeze(-1), l_max))
