"""Radial weights of every pair: the radial network at each distance, or splines through it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.models.race.spec import RaceSpec
from bayrace.nn.kernels import Kernel
from bayrace.nn.linear import linear
from bayrace.nn.radial import bessel_basis, silu
from bayrace.nn.splines import coefficients, spline
from bayrace.nn.tables import constant

TABLE = "radial_table"
"""Name of the spline coefficients among the folded weights of a layer."""


class Radial:
    """The radial functions of a network; each layer has weights of its own."""

    def __init__(self, spec: RaceSpec, kernel: Kernel) -> None:
        self.spec, self.kernel = spec, kernel

    def __call__(self, own: Mapping[str, Tensor], distance: Tensor, batch: GraphBatch) -> Tensor:
        """Radial weights of one layer at every pair, (P, Σ paths · channels)."""
        kind = self._pair_kind(batch) if self.spec.pair_radial else None
        knots = self.spec.radial_knots
        if not knots:
            gain = None if kind is None else own["pair_gain"][kind]
            weights = self._weights(own)
            return linear(self._hidden(weights, self._basis(distance), gain), weights[-1])
        table = own[TABLE] if TABLE in own else self.table(own)
        base = None if kind is None else kind * (knots + 3)
        if table.ndim == 3:  # members side by side, each with a table and its share of the pairs
            first = torch.arange(table.shape[0], device=table.device) * table.shape[1]
            rows = first.repeat_interleave(distance.shape[0] // table.shape[0])
            base, table = rows if base is None else base + rows, table.flatten(0, 1)
        return spline(
            table,
            distance,
            intervals=knots,
            cutoff=self.spec.cutoff,
            base=base,
            kernel=self.kernel,
        )

    def table(self, own: Mapping[str, Tensor]) -> Tensor:
        """Coefficients of the splines through the radial network, one set per kind of pair."""
        weights, spec = self._weights(own), self.spec
        knots = spec.radial_knots
        key = ("knots", knots, spec.cutoff, spec.radial_basis, spec.envelope_power)
        basis = constant(key, weights[0], self.basis_at_knots)
        gain = own["pair_gain"].unsqueeze(1) if spec.pair_radial else None
        hidden = self._hidden(weights, basis, gain)  # (knots + 1, H), or one for each kind
        # the last layer is linear, so it may come after the coefficients
        solved = coefficients(knots, hidden, first=self.first_interval()) @ hidden
        return linear(solved, weights[-1]).flatten(0, -2)

    def first_interval(self) -> int:
        """The interval of the splines that is continued below: at least half of it has data."""
        spec = self.spec
        known = [distance for row in spec.shortest for distance in row if distance > 0]
        shortest = min(known, default=0.0)
        return min(int(shortest * spec.radial_knots / spec.cutoff + 0.5), spec.radial_knots - 4)

    def _weights(self, own: Mapping[str, Tensor]) -> list[Tensor]:
        return [own[f"radial.{k}"] for k in range(len(self.spec.radial_hidden) + 1)]

    def _hidden(self, weights: list[Tensor], basis: Tensor, gain: Tensor | None) -> Tensor:
        """The network up to its last layer; no bias, so that it vanishes with the basis."""
        first = linear(basis, weights[0])
        value = silu(first if gain is None else first * (1 + 0.5 * gain))
        for weight in weights[1:-1]:
            value = silu(linear(value, weight))
        return value

    def _basis(self, distance: Tensor) -> Tensor:
        return bessel_basis(
            distance,
            cutoff=self.spec.cutoff,
            count=self.spec.radial_basis,
            power=self.spec.envelope_power,
        )

    def basis_at_knots(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What the radial network reads at the knots, (knots + 1, basis)."""
        knots = torch.linspace(0, self.spec.cutoff, self.spec.radial_knots + 1, dtype=torch.float64)
        knots[0] = knots[1] * 1e-6  # the limit of sin(nπx)/x
        return self._basis(knots).to(dtype=dtype, device=device)

    def _pair_kind(self, batch: GraphBatch) -> Tensor:
        """A number for the two elements of each pair, in either order, (P,)."""
        receiver, sender = batch.edges[:, batch.pair_edges[0]]
        elements = len(self.spec.elements)
        first, second = batch.species[receiver], batch.species[sender]
        if len(batch.species_counts) > elements:  # members side by side
            first, second = first % elements, second % elements
        return torch.minimum(first, second) * elements + torch.maximum(first, second)
