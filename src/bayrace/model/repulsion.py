"""The repulsion of atoms that are closer than bonded: ZBL (Ziegler, Biersack and Littmark 1985).

No training data reach there, and a network continues what it has learnt as it likes. Two nuclei of charges
Z behind their electrons repel each other as

    V(r) = 14.4 eV Å · Z₁ Z₂ / r · φ(r / a),    a = 0.4685 Å / (Z₁^0.23 + Z₂^0.23),

with a universal screening function φ. It is multiplied by the envelope u₆, which ends it, with five continuous
derivatives, at the sum of the two covalent radii: where there are data it is all but 0, and below it rules. The network
learns what is left. It has no parameters.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from bayrace.model.spec import RaceSpec
from bayrace.nn.radial import envelope
from bayrace.nn.tables import constant
from bayrace.types import GraphBatch

_COULOMB = 14.3996454785  # e² / 4πε₀, eV Å
_LENGTH, _POWER = 0.4685, 0.23  # of the screening length, Å
_SCREENING = ((0.18175, 3.19980), (0.50986, 0.94229), (0.28022, 0.40290), (0.02817, 0.20162))
_ENVELOPE = 6


def repulsion(spec: RaceSpec, distance: Tensor, batch: GraphBatch) -> Tensor:
    """Energy of each atom, (N,), eV: half of that of its pairs at these distances, (P,) Å."""
    receiver, sender = batch.edges[:, batch.pair_edges[0]]
    key = ("repulsion", spec.elements, spec.repulsion_radii)
    table = constant(key, distance, partial(_table, spec.elements, spec.repulsion_radii))
    kinds = len(spec.elements)
    first, second = batch.species[receiver] % kinds, batch.species[sender] % kinds
    charges, length, reach = table[:, first, second]
    x = distance / length
    screened = sum(weight * torch.exp(-rate * x) for weight, rate in _SCREENING)
    energy = charges / distance * screened * envelope(distance / reach, _ENVELOPE)
    half = 0.5 * energy
    atoms = distance.new_zeros(batch.atoms)
    return atoms.index_add(0, receiver, half).index_add(0, sender, half)


def _table(
    elements: tuple[int, ...],
    radii: tuple[float, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Products of charges (eV Å), screening lengths and ends (Å) of all pairs, (3, Z, Z)."""
    charge = torch.tensor(elements, dtype=torch.float64)
    radius = torch.tensor(radii, dtype=torch.float64)
    length = _LENGTH / (charge[:, None] ** _POWER + charge**_POWER)
    columns = (_COULOMB * torch.outer(charge, charge), length, radius[:, None] + radius)
    return torch.stack(columns).to(dtype=dtype, device=device)
