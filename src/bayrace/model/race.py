"""RACE: many-body message passing by restratified products (SPEC section 1).

A^(t) = Linear(Conv(A^(t-1)) ⊗ a¹) + SelfInteraction(A^(t-1)), with a readout after every layer.
Because a¹ depends on the element only, Linear(· ⊗ a¹) is one matrix per element, which
`contract_product` builds once per step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayrace.model.layout import (
    QUADRUPOLE_CHANNELS,
    LayerLayout,
    head_columns,
    parameter_shapes,
    race_layout,
)
from bayrace.model.noise import NoiseSpec
from bayrace.model.spec import RaceSpec
from bayrace.nn.convolution import Kernel, convolve, prepare
from bayrace.nn.covariance import STRESS_NUMBERS, shift_log_scale
from bayrace.nn.harmonics import spherical_harmonics
from bayrace.nn.irreps import QUADRUPOLE, SCALAR, Irrep
from bayrace.nn.linear import Features, contract_product, linear, species_linear
from bayrace.nn.products import prepare as prepare_product
from bayrace.nn.products import square
from bayrace.nn.radial import bessel_basis, radial_network, silu
from bayrace.nn.splines import coefficients, spline
from bayrace.nn.tables import constant
from bayrace.types import GraphBatch, Heads, Params

NOISE_GAIN = 0.1  # noise heads start flat, near the scale of the training forces


class Geometry(NamedTuple):
    """What every layer and every member shares."""

    harmonics: Tensor  # (E, (L+1)²)
    distance: Tensor  # Å, (P,)
    basis: Tensor | None  # (P, radial_basis), unless the radial functions are splines


class Known(NamedTuple):
    """What a layer reads besides the features of the one before."""

    embedding: Tensor  # A⁰ of each element, (Z, F)
    one_body: Tensor  # a¹ of each element, (Z, F)
    geometry: Geometry
    batch: GraphBatch


class Race:
    """The RACE network as a pure function of its parameters."""

    def __init__(self, spec: RaceSpec, *, kernel: Kernel = "auto") -> None:
        self.spec = spec
        self.kernel: Kernel = kernel
        self.layout = race_layout(spec)
        self.shapes = parameter_shapes(spec, self.layout)

    @property
    def cutoff(self) -> float:
        """Å."""
        return self.spec.cutoff

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers, ascending."""
        return self.spec.elements

    @property
    def noise_spec(self) -> NoiseSpec:
        """Which noise heads the network has."""
        return self.spec.noise

    @property
    def _neighbour_norm(self) -> float:
        neighbours = self.spec.mean_neighbours
        return math.sqrt(neighbours) if self.spec.neighbour_norm == "sqrt" else neighbours

    def prepare(self, dtype: torch.dtype) -> None:
        """Build all kernels of the network at once, so that no step waits for a compiler."""
        convolutions = [
            (group.plan, group.channels) for layer in self.layout for group in layer.groups
        ]
        products = {
            (layer.product, layer.convolved[SCALAR]) for layer in self.layout if layer.product
        }
        with ThreadPoolExecutor() as pool:
            jobs: list[Future[Any]] = [
                pool.submit(prepare, convolutions, dtype, kernel=self.kernel)
            ]
            jobs += [
                pool.submit(prepare_product, product, channels, dtype, kernel=self.kernel)
                for product, channels in products
            ]
        for job in jobs:
            job.result()

    def init(
        self, seed: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Params:
        """Normal weights, the same for every dtype and device."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64) * _gain(name)
            for name, shape in self.shapes.items()
        }
        for name, value in drawn.items():
            if name.endswith("readout.scalars"):
                value[:, 1:] *= NOISE_GAIN  # all columns but the energy belong to noise heads
        return {name: value.to(dtype=dtype, device=device) for name, value in drawn.items()}

    def energy(self, params: Params, batch: GraphBatch) -> Heads:
        """Energy of each structure and the raw noise heads."""
        geometry = self.geometry(batch)
        one_body = linear(params["embedding"], params["one_body"])  # a¹ of each element, (Z, F)
        known = Known(params["embedding"], one_body, geometry, batch)
        features: Features = {}
        readouts: list[Tensor] = []
        for layer in self.layout:
            own = _scoped(params, layer.name)
            features = self._layer(layer, own, features, known)
            readouts.append(self._readout(own, features))
        return self._heads(readouts, batch)

    def geometry(self, batch: GraphBatch) -> Geometry:
        """Radial basis of each pair and harmonics of each edge."""
        forward = batch.pair_edges[0]
        receiver, sender = batch.edges[:, forward]
        cell = batch.cell[batch.owner[receiver]]
        offset = torch.einsum("pi,pij->pj", batch.shifts[forward], cell)
        vector = batch.positions[sender] - batch.positions[receiver] + offset
        distance = vector.square().sum(-1).sqrt()
        basis = None if self.spec.radial_knots else self._basis(distance)
        harmonics = spherical_harmonics(vector / distance.unsqueeze(-1), self.spec.l_max)
        # the reverse edge sees the opposite direction: Y_l(-r) = (-1)^l Y_l(r)
        degree = torch.arange(self.spec.l_max + 1, device=vector.device)
        parity = (1 - 2 * (degree % 2)).repeat_interleave(2 * degree + 1).to(vector.dtype)
        backward = forward[batch.pair] != torch.arange(batch.pair.shape[0], device=vector.device)
        sign = torch.where(backward.unsqueeze(-1), parity, torch.ones_like(parity))
        return Geometry(harmonics[batch.pair] * sign, distance, basis)

    def _basis(self, distance: Tensor) -> Tensor:
        return bessel_basis(
            distance,
            cutoff=self.spec.cutoff,
            count=self.spec.radial_basis,
            power=self.spec.envelope_power,
        )

    def _layer(
        self,
        layer: LayerLayout,
        own: Mapping[str, Tensor],
        features: Features,
        known: Known,
    ) -> Features:
        """One message-passing step, A^(t-1) to A^(t)."""
        embedding, one_body, geometry, batch = known
        if layer.first:
            lifted = {SCALAR: linear(embedding, own["up.0e"])[batch.species].unsqueeze(1)}
        else:
            lifted = {irrep: linear(features[irrep], own[f"up.{irrep}"]) for irrep in layer.inputs}
        messages = self._messages(layer, own, lifted, geometry, batch)
        updated: Features = {}
        for irrep in layer.convolved:
            down = linear(messages[irrep], own[f"down.{irrep}"] * (1 / self._neighbour_norm))
            mixed = contract_product(own[f"product.{irrep}"], one_body)
            skip = own.get(f"skip.{irrep}")
            if skip is None:
                updated[irrep] = species_linear(down, mixed, batch.species_counts)
                continue
            skip = skip * (1 / math.sqrt(skip.shape[-2]))
            if layer.first:
                table = torch.einsum("zf,zfc->zc", embedding, skip)
                inner = species_linear(down, mixed, batch.species_counts)
                updated[irrep] = inner + table[batch.species].unsqueeze(1)
            else:
                both = torch.cat([down, features[irrep]], dim=-1)
                weight = torch.cat([mixed, skip], dim=-2)
                updated[irrep] = species_linear(both, weight, batch.species_counts)
        return self._beyond_the_paper(layer, own, updated)

    def _messages(
        self,
        layer: LayerLayout,
        own: Mapping[str, Tensor],
        lifted: Features,
        geometry: Geometry,
        batch: GraphBatch,
    ) -> Features:
        """Convolution; channels of all paths side by side."""
        radial = self._radial(own, geometry, batch)
        collected: dict[Irrep, list[Tensor]] = {irrep: [] for irrep in layer.convolved}
        start = 0
        for group in layer.groups:
            width = len(group.plan.paths) * group.channels
            weights = radial[:, start : start + width].reshape(
                -1, len(group.plan.paths), group.channels
            )
            start += width
            stacked = torch.cat([lifted[irrep] for irrep in group.plan.inputs], dim=1)
            summed = convolve(
                group.plan, stacked, geometry.harmonics, weights, batch, kernel=self.kernel
            )
            for irrep, view in group.plan.split(summed).items():
                collected[irrep].append(view)
        return {irrep: torch.cat(views, dim=-1) for irrep, views in collected.items()}

    def _radial(self, own: Mapping[str, Tensor], geometry: Geometry, batch: GraphBatch) -> Tensor:
        """Radial weights of every pair, (P, Σ paths · channels)."""
        kind = self._pair_kind(batch) if self.spec.pair_radial else None
        if geometry.basis is not None:
            gain = None if kind is None else own["pair_gain"][kind]
            weights = self._radial_weights(own)
            return radial_network(weights[-1:], self._radial_hidden(weights, geometry.basis, gain))
        knots = self.spec.radial_knots
        return spline(
            own["radial_table"] if "radial_table" in own else self._radial_table(own),
            geometry.distance,
            intervals=knots,
            cutoff=self.spec.cutoff,
            base=None if kind is None else kind * (knots + 3),
            kernel=self.kernel,
        )

    def _radial_table(self, own: Mapping[str, Tensor]) -> Tensor:
        """Coefficients of the splines through the radial network, one set per kind of pair."""
        weights = self._radial_weights(own)
        knots = self.spec.radial_knots
        key = ("knots", knots, self.spec.cutoff, self.spec.radial_basis, self.spec.envelope_power)
        basis = constant(key, weights[0], self._basis_at_knots)
        gain = own["pair_gain"].unsqueeze(1) if self.spec.pair_radial else None
        hidden = self._radial_hidden(weights, basis, gain)  # (knots + 1, H), or one for each kind
        # the last layer is linear, so it may come after the coefficients
        solved = coefficients(knots, hidden) @ hidden
        return radial_network(weights[-1:], solved).flatten(0, -2)

    def _radial_weights(self, own: Mapping[str, Tensor]) -> list[Tensor]:
        return [own[f"radial.{k}"] for k in range(len(self.spec.radial_hidden) + 1)]

    def _radial_hidden(self, weights: list[Tensor], basis: Tensor, gain: Tensor | None) -> Tensor:
        """The radial network up to its last layer."""
        first = linear(basis, weights[0])
        value = silu(first if gain is None else first * (1 + 0.5 * gain))
        for weight in weights[1:-1]:
            value = silu(linear(value, weight))
        return value

    def _basis_at_knots(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        knots = torch.linspace(0, self.spec.cutoff, self.spec.radial_knots + 1, dtype=torch.float64)
        knots[0] = knots[1] * 1e-6  # the limit of sin(nπx)/x
        return self._basis(knots).to(dtype=dtype, device=device)

    def _pair_kind(self, batch: GraphBatch) -> Tensor:
        """A number for the two elements of each pair, in either order, (P,)."""
        receiver, sender = batch.edges[:, batch.pair_edges[0]]
        low = torch.minimum(batch.species[receiver], batch.species[sender])
        high = torch.maximum(batch.species[receiver], batch.species[sender])
        return low * len(self.elements) + high

    def _beyond_the_paper(
        self, layer: LayerLayout, own: Mapping[str, Tensor], features: Features
    ) -> Features:
        """Optional self-contraction A + Linear(A ⊗ A), then the optional gate."""
        if layer.product:
            stacked = torch.cat([features[irrep] for irrep in layer.product.inputs], dim=1)
            products = layer.product.split(square(layer.product, stacked, kernel=self.kernel))
            features = {irrep: features[irrep] for irrep in layer.outputs} | {
                irrep: features[irrep] + linear(value, own[f"contract.{irrep}"])
                for irrep, value in products.items()
            }
        if not self.spec.gate or layer.last:
            return features
        scalars = features[SCALAR]
        gated = {SCALAR: silu(scalars)}
        for irrep, value in features.items():
            if irrep != SCALAR:
                gate = torch.sigmoid(linear(scalars, own[f"gate.{irrep}"]))
                gated[irrep] = value * (gate * 2)
        return gated

    def _readout(self, own: Mapping[str, Tensor], features: Features) -> Tensor:
        """Numbers of one layer: energy, scalars of the heads, quadrupoles of the heads (N, H)."""
        hidden = silu(linear(features[SCALAR].squeeze(1), own["readout.hidden"]))
        scalars = linear(hidden, own["readout.scalars"])
        quadrupoles = head_columns(self.spec.noise).quadrupoles
        if not quadrupoles:
            return scalars
        if "readout.quadrupole" not in own:  # this layer cannot reach 2e yet
            return torch.cat([scalars, scalars.new_zeros(len(scalars), 5 * quadrupoles)], dim=-1)
        # each quadrupole is a sum of channels gated by the hidden scalars
        channels = linear(features[QUADRUPOLE], own["readout.quadrupole"])  # (N, 5, G)
        gates = linear(hidden, own["readout.gates"])
        gated = (channels * gates.unsqueeze(1)).reshape(
            -1, QUADRUPOLE.dim, quadrupoles, QUADRUPOLE_CHANNELS
        )
        summed = gated.sum(-1) * (1 / math.sqrt(QUADRUPOLE_CHANNELS))  # (N, 5, quadrupoles)
        return torch.cat([scalars, summed.mT.flatten(1)], dim=-1)

    def _heads(self, readouts: list[Tensor], batch: GraphBatch) -> Heads:
        """Sum energies and average noise heads over layers; back to eV."""
        spec, noise = self.spec, self.spec.noise
        atomic = torch.stack([readout[:, 0] for readout in readouts])
        if spec.activation == "relu":
            atomic = torch.relu(atomic)
        # float64 for sums, whatever the network's dtype
        shift = torch.tensor(spec.shift, dtype=torch.float64, device=batch.species.device)
        per_atom = atomic.sum(0).double() * spec.scale + shift[batch.species]
        energy = per_atom.new_zeros(batch.structures).index_add(0, batch.owner, per_atom)
        if noise.kind == "none":
            return Heads(energy, per_atom, None, None, None)
        heads = torch.stack(readouts).mean(0)
        level = math.log(spec.scale)
        energy_head = heads[:, 1] + 2 * level
        if noise.kind == "energy":
            return Heads(energy, per_atom, energy_head, None, None)
        order = head_columns(noise)
        forces_head = shift_log_scale(heads[:, order.forces], level, noise.covariance)
        stress_head = None
        if noise.stress:
            zero = heads.new_zeros(batch.structures, STRESS_NUMBERS[noise.covariance])
            total = zero.index_add(0, batch.owner, heads[:, order.stress])
            mean = total / batch.atom_counts().unsqueeze(-1)
            stress_head = shift_log_scale(mean, level, noise.covariance)
        return Heads(energy, per_atom, energy_head, forces_head, stress_head)


def _scoped(params: Params, name: str) -> dict[str, Tensor]:
    """Parameters of one layer under their own names."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): value for key, value in params.items() if key.startswith(prefix)
    }


def _gain(name: str) -> float:
    """Initial standard deviation of a parameter: features and energies start of order 1."""
    part = name.removeprefix(name.split(".")[0] + ".")
    gains = {"product": 0.5, "skip": 0.7, "contract": 0.2, "readout.scalars": 0.3}
    gains["readout.gates"] = NOISE_GAIN
    return next((gain for prefix, gain in gains.items() if part.startswith(prefix)), 1.0)
