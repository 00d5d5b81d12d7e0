"""Readouts: from the features of every layer to energies and the raw noise heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Heads
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.layout import QUADRUPOLE_CHANNELS, LayerLayout, head_columns
from bayrace.models.race.maps import split
from bayrace.models.race.pooling import pool, read_vectors
from bayrace.models.race.spec import RaceSpec
from bayrace.nn.covariance import shift_log_scale
from bayrace.nn.irreps import QUADRUPOLE, SCALAR
from bayrace.nn.linear import atomwise
from bayrace.nn.radial import silu


class Readout(NamedTuple):
    """What one layer says."""

    numbers: Tensor  # (N, H): energy, scalars of the heads, quadrupoles of the heads
    hidden: Tensor  # (N, K), what the scalars are linear in
    vectors: Tensor | None  # (N, 3), where the target is the norm of a vector


def readout(
    noise: NoiseSpec, layer: LayerLayout, own: Mapping[str, Tensor], features: Tensor
) -> Readout:
    """The numbers of one layer, from its features (N, width)."""
    hidden = silu(atomwise(features[:, : layer.outputs[SCALAR]], own["readout.hidden"]))
    scalars = atomwise(hidden, own["readout.scalars"])
    vectors = read_vectors(layer, own, features, hidden)
    quadrupoles = head_columns(noise).quadrupoles
    if not quadrupoles:
        return Readout(scalars, hidden, vectors)
    if "readout.quadrupole" not in own:  # this layer cannot reach 2e yet
        nothing = scalars.new_zeros(scalars.shape[0], 5 * quadrupoles)
        return Readout(torch.cat([scalars, nothing], dim=-1), hidden, vectors)
    # each quadrupole is a sum of channels gated by the hidden scalars
    shapes = split(features, layer.outputs)[QUADRUPOLE]
    channels = atomwise(shapes, own["readout.quadrupole"])  # (N, 5, G)
    gates = atomwise(hidden, own["readout.gates"])
    gated = (channels * gates.unsqueeze(1)).reshape(
        -1, QUADRUPOLE.dim, quadrupoles, QUADRUPOLE_CHANNELS
    )
    summed = gated.sum(-1) * (1 / math.sqrt(QUADRUPOLE_CHANNELS))  # (N, 5, quadrupoles)
    return Readout(torch.cat([scalars, summed.mT.flatten(1)], dim=-1), hidden, vectors)


def heads_of(
    spec: RaceSpec, readouts: list[Readout], batch: GraphBatch, *, known: Tensor | None
) -> Heads:
    """Sum energies and average noise heads over layers; back to eV.

    `known` are energies of atoms (N,), eV, that need not be learnt.
    """
    numbers = torch.stack([readout.numbers for readout in readouts])  # (T, N, H)
    hidden = _last_hidden(spec, [readout.hidden for readout in readouts])
    total = numbers.sum(0)
    if spec.activation == "relu":
        total = torch.cat([torch.relu(numbers[:, :, :1]).sum(0), total[:, 1:]], dim=-1)
    vectors = _vectors(spec, readouts)
    return heads_from(spec, total, hidden, batch, known=known, vectors=vectors)


def heads_from(
    spec: RaceSpec,
    total: Tensor,
    hidden: Tensor | None,
    batch: GraphBatch,
    *,
    known: Tensor | None,
    vectors: Tensor | None = None,
) -> Heads:
    """The same from the numbers of all layers added up, (N, H)."""
    noise = spec.noise
    # float64 for sums, whatever the network's dtype
    shift = torch.tensor(spec.shift, dtype=torch.float64, device=batch.species.device)
    copies = len(batch.species_counts) // len(spec.shift)
    shift = shift if copies == 1 else shift.repeat(copies)  # repeat is slow
    per_atom = torch.add(shift[batch.species], total[:, 0], alpha=spec.scale)
    if known is not None:
        per_atom = per_atom + known
    per_atom, share = pool(spec, per_atom, vectors, batch)
    energy = batch.summed(per_atom)
    if noise.kind == "none":
        return Heads(energy, per_atom, None, None, None, hidden, share)
    if noise.kind == "shallow":
        members = total[:, 1:] * spec.scale  # energies beyond that of column 0
        members = members if share is None else members * share.to(members).unsqueeze(-1)
        return Heads(energy, per_atom, members, None, None, hidden, share)
    heads = total * (1 / spec.layers)
    level = math.log(spec.scale)
    energy_head = heads[:, 1] + 2 * level
    if noise.kind == "energy":
        return Heads(energy, per_atom, energy_head, None, None, hidden, share)
    order = head_columns(noise)
    forces_head = shift_log_scale(_columns(heads, order.forces), level, noise.covariance)
    stress_head = None
    if noise.stress:
        mean = batch.averaged(_columns(heads, order.stress))
        stress_head = shift_log_scale(mean, level, noise.covariance)
    return Heads(energy, per_atom, energy_head, forces_head, stress_head, hidden, share)


def _columns(heads: Tensor, places: tuple[int, ...]) -> Tensor:
    """Some columns; a view where they are side by side, which is quicker than an index."""
    start, end = places[0], places[-1] + 1
    return heads[:, start:end] if len(places) == end - start else heads[:, places]


def _vectors(spec: RaceSpec, readouts: list[Readout]) -> Tensor | None:
    """Of atoms, summed over layers, in the target's unit, (N, 3) float64; None without any."""
    found = [each.vectors for each in readouts if each.vectors is not None]
    return torch.stack(found).sum(0).double() * spec.scale if found else None


def _last_hidden(spec: RaceSpec, hidden: list[Tensor]) -> Tensor | None:
    """All that the energy is linear in, (N, Σ K), scaled so that the weights are the bare ones."""
    if spec.activation != "identity":
        return None
    return torch.cat(hidden, dim=-1) * hidden_factor(spec)


def hidden_factor(spec: RaceSpec) -> float:
    """eV, by which hidden numbers are scaled."""
    return spec.scale / math.sqrt(spec.readout_hidden)
