"""Below the shortest distances of the training data: smooth, bounded and repulsive.

No data tell what two atoms do that are closer than any two such atoms were, and a network may say
anything: splines, and products of products, grow without bound to either side. From `MARGIN` below
the shortest training distance d of two elements on,

- the radial functions are read at a distance that saturates,
  r̃ = d' − s·f(t),  f(t) = t / (1 + t³)^⅓,  t = (d' − r) / s,  d' = d − MARGIN,  s = SOFT,
  which leaves them as they are to third order and never reads them below d' − s;
- the repulsion of screened nuclei is added (ZBL: Ziegler, Biersack and Littmark 1985), less its
  value, slope and curvature at d', so that it sets in smoothly:
  V(r) = 14.4 eV Å · Z₁ Z₂ / r · φ(r / a),  a = 0.4685 Å / (Z₁^0.23 + Z₂^0.23).

Where there are data nothing changes, to the last bit. There are no parameters.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.models.race.spec import RaceSpec
from bayrace.nn.tables import constant, inside_transforms

MARGIN = 0.05  # Å
SOFT = 0.15  # Å
_COULOMB = 14.3996454785  # e² / 4πε₀, eV Å
_LENGTH, _POWER = 0.4685, 0.23  # of the screening length, Å
_SCREENING = ((0.18175, 3.19980), (0.50986, 0.94229), (0.28022, 0.40290), (0.02817, 0.20162))


class ShortRange(NamedTuple):
    """What pairs that are too close have instead of their own."""

    distance: Tensor  # Å, (P,), at which radial functions are read
    energy: Tensor | None  # eV, (N,), repulsion of each atom; None where no pair is too close


def short_range(spec: RaceSpec, distance: Tensor, batch: GraphBatch) -> ShortRange:
    """Distances (P,) as the network should see them, and the repulsion."""
    if not spec.shortest:
        return ShortRange(distance, None)
    receiver, sender = batch.edges[:, batch.pair_edges[0]]
    kinds = len(spec.elements)  # members side by side have species of their own
    first, second = batch.species[receiver] % kinds, batch.species[sender] % kinds
    key = ("short range", spec.elements, spec.shortest)
    table = constant(key, distance, partial(close_pairs, spec.elements, spec.shortest))
    start = table[0, first, second]
    depth = torch.relu(start - distance)
    if _may_look(depth) and not bool(depth.any()):
        return ShortRange(distance, None)
    t = depth / SOFT
    saturated = distance + depth - SOFT * t * (1 + t**3) ** (-1 / 3)
    half = 0.5 * _repulsion(distance, depth, table[1:, first, second])
    atoms = distance.new_zeros(batch.n_atoms)
    energy = atoms.index_add(0, receiver, half).index_add(0, sender, half)
    return ShortRange(saturated, energy)


def _may_look(value: Tensor) -> bool:
    """Whether numbers may decide what is computed: not in transforms or graphs, nor on a GPU."""
    return not (value.is_cuda or inside_transforms() or torch.compiler.is_compiling())


def _repulsion(distance: Tensor, depth: Tensor, table: Tensor) -> Tensor:
    """ZBL of each pair, eV, less its parabola at the start; 0 above it."""
    charges, per_length, value, slope, curvature = table
    x = distance * per_length
    screening = torch.stack([weight * torch.exp(-rate * x) for weight, rate in _SCREENING]).sum(0)
    # the start lies at distance + depth
    parabola = value - slope * depth + 0.5 * curvature * depth.square()
    return torch.where(depth > 0, charges / distance * screening - parabola, 0.0)


def close_pairs(
    elements: tuple[int, ...],
    shortest: tuple[tuple[float, ...], ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Start, Å; Z₁ Z₂ in eV Å; 1 / a; ZBL, its slope and curvature at the start; (6, Z, Z)."""
    charge = torch.tensor(elements, dtype=torch.float64)
    known = torch.tensor(shortest, dtype=torch.float64)
    start = (known - MARGIN).clamp(min=0.0)
    charges = _COULOMB * torch.outer(charge, charge)
    per_length = (charge[:, None] ** _POWER + charge**_POWER) / _LENGTH
    r = start.clamp(min=1e-3)  # where nothing is known nothing is below the start
    value, slope, curvature = (torch.zeros_like(r) for _ in range(3))
    for weight, rate in _SCREENING:
        b = rate * per_length
        term = charges * weight * torch.exp(-b * r) / r
        value = value + term
        slope = slope - term * (b + 1 / r)
        curvature = curvature + term * (b**2 + 2 * b / r + 2 / r**2)
    columns = (start, charges, per_length, value, slope, curvature)
    return torch.stack(columns).to(dtype=dtype, device=device)
