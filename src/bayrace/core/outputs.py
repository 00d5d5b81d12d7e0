"""Parameters, and what ONE weight sample says of a batch.

Sizes: S structures, N atoms, E directed edges, P undirected pairs (E = 2P), Z elements.
Units: eV, Å, eV/Å, eV/Å³. Stress uses ASE's Voigt order (xx, yy, zz, yz, xz, xy) and sign.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

Params = dict[str, Tensor]
"""Parameters of a model by name; members of a posterior are stacked along a leading dimension."""


class Heads(NamedTuple):
    """What the network returns: the energy and the raw numbers its noise is built from."""

    energy: Tensor  # (S,) eV, references not included
    atomic_energy: Tensor  # (N,) eV, sums to energy
    energy_head: Tensor | None  # (N,) log of eV²
    forces_head: Tensor | None  # (N, 6), meaning set by the covariance form
    stress_head: Tensor | None  # (S, H), meaning set by the covariance form
    last_features: Tensor | None  # (N, D); atomic_energy = these @ last layer + constants
    share: Tensor | None = None  # (N,), times which it is so where the pooling is not a plain sum


class Derivatives(NamedTuple):
    """What a network returns that differentiates its energy itself."""

    heads: Heads
    gradient: Tensor  # (N, 3) eV/Å, of the energy by positions
    virial: Tensor  # (S, 3, 3) eV, of the energy by a symmetric strain


class Outputs(NamedTuple):
    """What ONE weight sample says of a batch, before the λ correction."""

    energy: Tensor  # (S,) eV, references not included
    atomic_energy: Tensor  # (N,) eV
    forces: Tensor  # (N, 3) eV/Å
    stress: Tensor | None  # (S, 6) eV/Å³, nan where the structure is not fully periodic
    energy_head: Tensor | None  # (N,)
    forces_head: Tensor | None  # (N, 6)
    stress_head: Tensor | None  # (S, H)
    last_features: Tensor | None  # (N, D), see Heads
    share: Tensor | None = None  # (N,), see Heads


class LossParts(NamedTuple):
    """A scalar to minimise and its parts, each a scalar tensor."""

    total: Tensor
    parts: dict[str, Tensor]


class EpistemicVariances(NamedTuple):
    """Epistemic variances of a batch in closed form, in the batch's atom order."""

    energy: Tensor  # (S,) eV²
    forces: Tensor | None  # (N, 3, 3) (eV/Å)²
    stress: Tensor | None  # (S, 6, 6) (eV/Å³)², Voigt components
    atomic: Tensor | None = None  # (N,) eV², of the energies of atoms
