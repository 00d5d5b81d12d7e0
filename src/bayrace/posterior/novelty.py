"""How unlike the training structures a structure is as a whole, where every atom of it passes.

The distance of an atom (latent.py) asks whether one training atom could look like it. A cold
crystal passes where only a melt was seen: each of its atoms could be one of the melt's. All of them
together could not, for what differs among the atoms of the melt averages out, and what a crystal
differs by does not. With the deviations u_i = (φ_i - μ) Σ^-½ of its n atoms from the training atoms
of their elements,

    novelty = |Σ_i u_i / n| / the root mean square of the same over training structures,

elements apart. It is about 1 at home and does not change with the number of copies of a cell. It
says that a structure is of another kind, not that its energy is wrong: that is what σ is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch

REGULARISATION = 1e-2
"""Least variance of a feature that counts, in units of the mean: means of few structures hardly
know the smaller ones. Chosen on germanium."""

_LEAST = 1e-2  # of what independent atoms would give: structures that are all the same have nothing


class ElementMeans(NamedTuple):
    """What each element adds to the mean of a structure, (S, Z) and (S, Z, D)."""

    atoms: Tensor  # its part of the atoms
    features: Tensor  # Σ φ of its atoms over all atoms


class MeanMoments(NamedTuple):
    """Sums over training structures of moments of these parts."""

    structures: int
    inverse_count: Tensor  # () of 1/n
    atoms: Tensor  # (Z,) of the squared part of the atoms
    mixed: Tensor  # (Z, D)
    features: Tensor  # (Z, D, D)

    def joined(self, more: MeanMoments) -> MeanMoments:
        """Those of all these structures."""
        return MeanMoments(
            self.structures + more.structures,
            self.inverse_count + more.inverse_count,
            self.atoms + more.atoms,
            self.mixed + more.mixed,
            self.features + more.features,
        )


def element_means(batch: GraphBatch, hidden: Tensor) -> ElementMeans:
    """Of the structures of a batch, from the features of its atoms (N, D)."""
    kinds = len(batch.species_counts)
    place = batch.structure_index * kinds + batch.species
    size = batch.n_structures * kinds
    count = torch.bincount(place, minlength=size).to(torch.float64)
    total = hidden.new_zeros(size, hidden.shape[1], dtype=torch.float64)
    total.index_add_(0, place, hidden.double())
    atoms = batch.atom_counts().double()[:, None]
    return ElementMeans(
        count.reshape(-1, kinds) / atoms,
        total.reshape(-1, kinds, hidden.shape[1]) / atoms.unsqueeze(-1),
    )


def mean_moments(batch: GraphBatch, hidden: Tensor) -> MeanMoments:
    """Moments of the structures of a batch."""
    atoms, features = element_means(batch, hidden)
    return MeanMoments(
        batch.n_structures,
        batch.atom_counts().double().reciprocal().sum(),
        atoms.square().sum(0),
        torch.einsum("sz,szd->zd", atoms, features),
        torch.einsum("szd,sze->zde", features, features),
    )


@dataclass(frozen=True, eq=False)
class Novelty:
    """|Σ u / n| of structures as a function of their features."""

    centre: Tensor  # (Z, D) float64, μ
    whitening: Tensor  # (Z, D, D) float64, of distances
    gains: Tensor  # (Z, D) float64 of its columns, since here it is regularised more
    usual: float  # root mean square of |Σ u / n| over the training structures

    def __post_init__(self) -> None:
        """Refuse a level that none can be compared with."""
        if not 0 < self.usual < math.inf:
            raise ValueError(f"usual_novelty={self.usual}: must be a finite number above 0")

    @classmethod
    def fitted(cls, seen: MeanMoments, centre: Tensor, whitening: Tensor, smooth: Tensor) -> Self:
        """With the level that training structures have.

        `smooth` is the whitening with REGULARISATION: the same but for the length of its columns.
        """
        gains = smooth.norm(dim=1) / whitening.norm(dim=1)
        matrices = whitening * gains[:, None, :]
        cross = torch.einsum("zd,ze->zde", seen.mixed, centre)
        own = torch.einsum("z,zd,ze->zde", seen.atoms, centre, centre)
        moment = seen.features - cross - cross.mT + own  # Σ over structures of aᵀa, a = Σ(φ - μ)/n
        square = torch.einsum("zdk,zde,zek->", matrices, moment, matrices)
        independent = float(seen.inverse_count) / seen.structures
        level = max(float(square) / seen.structures, _LEAST * independent)
        return cls(centre, whitening, gains, level**0.5)

    def __call__(self, batch: GraphBatch, hidden: Tensor) -> Tensor:
        """Of structures from the features of their atoms (N, D): (S,) float64."""
        atoms, features = element_means(batch, hidden)
        moved = features - atoms.unsqueeze(-1) * self.centre
        mean = torch.einsum("szd,zdk->szk", moved, self._matrices)
        return mean.square().sum((1, 2)).sqrt() / self.usual

    @cached_property
    def _matrices(self) -> Tensor:
        return self.whitening * self.gains[:, None, :]

    def to(self, *, device: torch.device | str | None = None) -> Self:
        """On another device."""
        names = ("centre", "whitening", "gains")
        return replace(self, **{name: getattr(self, name).to(device=device) for name in names})
