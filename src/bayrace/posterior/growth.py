"""Variances that grow with the distance from the training data, m, as `distance` has them.

Compiled code does all of it in one call: for a few atoms, its dozen small operations in PyTorch
would take longer than the distances themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Outputs
from bayrace.nn.covariance import isotropic_covariance
from bayrace.nn.kernels import DTYPES, ready
from bayrace.nn.lengths import CHANNELS, Lengths, first_of, load
from bayrace.posterior.gaussian.last_layer import pooled_features, structure_features
from bayrace.posterior.latent import hidden_features


class Law(NamedTuple):
    """How a variance grows with m: g(m)^power, g(m) = m / (1 + m / ceiling)."""

    power: float
    ceiling: float | None = None  # None: m does not level off

    def __call__(self, distance: Tensor) -> Tensor:
        """Of every atom."""
        return (distance / (1 + distance * self.slope)) ** self.power

    @property
    def slope(self) -> float:
        """1 / ceiling."""
        return 0.0 if self.ceiling is None else 1 / self.ceiling


class Grown(NamedTuple):
    """Float64, in the order of the batch."""

    energy: Tensor  # (S,) r ⟨g(m)^(q-1)⟩; nan where energies are not modelled
    atomic: Tensor | None  # (N,) r g(m)^(q-1)
    grown: Tensor  # (N,) g(m)^p
    forces: Tensor | None  # (N, 3, 3) c g(m)^p


@dataclass(frozen=True, eq=False)
class Growth:
    """The variances as a function of features."""

    distance: Lengths  # m, of every element
    rigidity: Lengths | None  # r; None where energies are not modelled
    forces_scale: Tensor | None  # (Z,) c; None where forces are not
    forces_law: Law  # p and K
    energy_law: Law  # q - 1 and its K

    def __call__(self, batch: GraphBatch, outputs: Outputs, *, forces: bool) -> Grown:
        """Of a batch whose `outputs` have features."""
        hidden = hidden_features(outputs).detach().contiguous()
        known = outputs.share is None and self.distance.compiled(hidden)
        if known and (self.rigidity is None or self.rigidity.compiled(hidden)):
            return self._compiled(batch, hidden, forces=forces)
        return self.plain(batch, outputs, forces=forces)

    def plain(self, batch: GraphBatch, outputs: Outputs, *, forces: bool) -> Grown:
        """The same by PyTorch."""
        added = pooled_features(outputs)
        distance = self.distance(hidden_features(outputs), batch.species_counts)
        energy, atomic = distance.new_full((batch.n_structures,), torch.nan), None
        if self.rigidity is not None:
            excess = self.energy_law(distance)
            rigid = self.rigidity(torch.cat([added, structure_features(batch, added)]))
            energy = rigid[batch.n_atoms :] * batch.averaged(excess)
            atomic = rigid[: batch.n_atoms] * excess
        grown, covariance = self.forces_law(distance), None
        if forces and self.forces_scale is not None:
            variance = self.forces_scale[batch.species] * grown
            covariance = variance[:, None, None] * isotropic_covariance(3, variance)
        return Grown(energy, atomic, grown, covariance)

    def _compiled(self, batch: GraphBatch, hidden: Tensor, *, forces: bool) -> Grown:
        structures, (atoms, width) = batch.n_structures, hidden.shape
        grown, covariance, scale = torch.empty(atoms, dtype=torch.float64), None, None
        if forces and self.forces_scale is not None:
            covariance, scale = grown.new_empty((atoms, 3, 3)), self.forces_scale.contiguous()
        energy, atomic, sums = grown.new_full((structures,), torch.nan), None, None
        rigid, rigid_size = None, 0
        if self.rigidity is not None:
            atomic, sums = torch.empty_like(grown), grown.new_zeros((structures, width))
            rigid, rigid_size = self.rigidity.panels
        (panels, size), centres = self.distance.panels, self.distance.centres
        owner, counts = batch.structure_index.contiguous(), batch.species_counts
        functions, _ = ready(load, DTYPES[hidden.dtype], torch.float64, CHANNELS)
        functions["grow"](
            *(len(counts), first_of(counts), width, hidden.data_ptr(), size),
            *(_address(centres), panels.data_ptr(), rigid_size, _address(rigid)),
            *(structures, owner.data_ptr(), _address(scale)),
            *(self.forces_law.power, self.forces_law.slope),
            *(self.energy_law.power, self.energy_law.slope),
            *(_address(each) for each in (sums, energy, atomic, grown, covariance)),
        )
        return Grown(energy, atomic, grown, covariance)


def _address(value: Tensor | None) -> int | None:
    return None if value is None else value.data_ptr()
