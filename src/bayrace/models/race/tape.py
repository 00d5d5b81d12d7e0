"""A RACE network written down for `bayrace.nn.program`: the formulas of `network`, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.models.race.layout import (
    QUADRUPOLE_CHANNELS,
    LayerLayout,
    head_columns,
    parameter_shapes,
    race_layout,
)
from bayrace.models.race.maps import LayerMaps, layer_maps
from bayrace.models.race.radial import TABLE, Radial
from bayrace.models.race.readout import hidden_factor
from bayrace.models.race.short_range import close_pairs
from bayrace.models.race.spec import RaceSpec
from bayrace.nn.irreps import QUADRUPOLE, SCALAR, Channels, Irrep, parse_irreps
from bayrace.nn.mixing import Block, Mixing
from bayrace.nn.program.gates import gate
from bayrace.nn.program.maps import Matrices, mix, pick, silu, spread
from bayrace.nn.program.operations import (
    Geometry,
    Graph,
    Splines,
    geometry,
    send,
    square,
)
from bayrace.nn.program.readouts import Readout, ReadoutSizes, read
from bayrace.nn.program.tape import Tape, Value
from bayrace.nn.splines import coefficients

_MOST_HIDDEN = 1024  # of a readout, as in readout.c


def supported(spec: RaceSpec) -> bool:
    """Whether this file knows all options of a network."""
    counts = set(parse_irreps(spec.hidden).values())
    plain = not spec.pair_radial and spec.activation == "identity"
    energies = spec.target.is_energy and spec.target.pooling == "sum"
    small = spec.readout_hidden <= _MOST_HIDDEN
    return plain and energies and small and spec.radial_knots > 0 and len(counts) == 1


@dataclass(eq=False)
class Writer:
    """The tape of a network and the arrays that a caller gives or gets."""

    spec: RaceSpec
    folded: bool  # the weights are those of `Race.fold`
    tape: Tape = field(default_factory=Tape)
    params: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec, kinds = self.spec, len(self.spec.elements)
        self.layout = race_layout(spec)
        self.shapes = parameter_shapes(spec, self.layout)
        self.whole = Value(2, 1)  # first and last atom
        self.by_element = Value(kinds + 1, 1)  # first atom of every element
        self.graph = _graph(spec)
        self.columns = head_columns(spec.noise)
        width = self.columns.scalars + 5 * self.columns.quadrupoles
        self.numbers = Value("atoms", width)
        self.hidden = Value("atoms", spec.layers * spec.readout_hidden)
        self.shared = 0  # first steps, which read no weights
        self._alike: dict[int, Value] = {}

    def write(self) -> Geometry:
        """Everything up to energies, heads and their derivative by positions."""
        kinds = len(self.spec.elements)
        where = geometry(self.tape, self.graph, degree=self.spec.l_max, elements=kinds)
        self.shared = len(self.tape.steps)
        embedding = self.weight("embedding")
        one_body = None
        if not self.folded:
            one_body = self.linear(embedding, self.weight("one_body"), self.spec.features)
        features: Value | None = None
        for index, layer in enumerate(self.layout):
            features = self._layer(layer, features, where, one_body)
            self._readout(layer, index, features)
        seed = {self.numbers: Value("atoms", self.numbers.width)}  # 1 for the energy: readout.c
        self.tape.differentiate(seed, (self.graph.positions,), learning=False)
        return where

    def weight(self, name: str) -> Value:
        """The array of a parameter."""
        if name not in self.params:
            shape = self.shapes[name]
            self.params[name] = Value(math.prod(shape[:-1]), shape[-1])
        return self.params[name]

    def linear(self, x: Value, weight: Value, before: int, *, scale: float | None = None) -> Value:
        """`bayrace.nn.linear.linear` for a fixed number of rows."""
        after = weight.numbers // before
        factor = 1 / math.sqrt(before) if scale is None else scale
        mixing = Mixing((Block(1, before, after, factor),))
        return mix(self.tape, Matrices(mixing, (weight,), 1, self._rows(x)), x)

    def _rows(self, x: Value) -> Value:
        """First and last row of an array with a fixed number of them."""
        assert isinstance(x.rows, int)
        known = np.array([0, x.rows], dtype=np.int64)
        return self._alike.setdefault(x.rows, Value(2, 1, known))

    def _layer(
        self, layer: LayerLayout, features: Value | None, where: Geometry, one_body: Value | None
    ) -> Value:
        maps, name, tape = layer_maps(self.spec, layer), layer.name, self.tape
        if features is None:
            embedding = self.weight("embedding")
            lifted = self.linear(embedding, self.weight(f"{name}.up.0e"), self.spec.features)
            x = spread(tape, self.graph.species, lifted)
        else:
            x = mix(tape, self._matrices(maps.up, f"{name}.up", layer.inputs), features)
        splines = Splines(self._table(layer), self.spec.radial_knots, self.spec.cutoff)
        (group,) = layer.groups
        sent = send(tape, group.plan, x, where, splines)
        updated = self._update(layer, maps, sent, one_body)
        self._skip(layer, maps, features, updated)
        return self._gated(layer, self._contracted(layer, maps, updated))

    def _matrices(
        self, mixing: Mixing, name: str, irreps: Channels | list[Irrep], *, by_element: bool = False
    ) -> Matrices:
        """The matrices of a map by their names, one for each irrep that has any."""
        ordered = sorted(irreps, key=lambda irrep: (irrep.l, -irrep.p))
        values = tuple(
            self.weight(f"{name}.{irrep}") if block.before * block.after else None
            for irrep, block in zip(ordered, mixing.blocks, strict=True)
        )
        if by_element:
            return Matrices(mixing, values, len(self.spec.elements), self.by_element)
        return Matrices(mixing, values, 1, self.whole)

    def _update(
        self, layer: LayerLayout, maps: LayerMaps, sent: Value, one_body: Value | None
    ) -> Value:
        kinds, name, tape = len(self.spec.elements), layer.name, self.tape
        if one_body is None:
            update = self.params.setdefault(f"{name}.update", Value(kinds, maps.folded.weights))
            every = (update,) * len(maps.folded.blocks)
            weights = Matrices(maps.folded, every, kinds, self.by_element, together=True)
            return mix(tape, weights, sent)
        down = mix(tape, self._matrices(maps.down, f"{name}.down", layer.convolved), sent)
        features = self.spec.features
        products = tuple(
            self.linear(one_body, self.weight(f"{name}.product.{irrep}"), features, scale=1.0)
            for irrep in layer.convolved
        )
        return mix(tape, Matrices(maps.species, products, kinds, self.by_element), down)

    def _skip(
        self, layer: LayerLayout, maps: LayerMaps, features: Value | None, updated: Value
    ) -> None:
        """Add the self-interaction; that of the first layer depends on the element only."""
        tape, name, kinds = self.tape, layer.name, len(self.spec.elements)
        if features is not None:
            union = sorted({*layer.inputs, *layer.convolved})
            weights = self._matrices(maps.skip, f"{name}.skip", union, by_element=True)
            mix(tape, weights, features, y=updated)
            return
        before, after = self.spec.features, layer.convolved[SCALAR]
        mixing = Mixing((Block(1, before, after, 1 / math.sqrt(before)),))
        each = Value(kinds + 1, 1, np.arange(kinds + 1))  # a matrix for every row
        weights = Matrices(mixing, (self.weight(f"{name}.skip.0e"),), kinds, each)
        scalars = mix(tape, weights, self.weight("embedding"))
        spread(tape, self.graph.species, scalars, y=updated)

    def _contracted(self, layer: LayerLayout, maps: LayerMaps, updated: Value) -> Value:
        """A + Linear(A ⊗ A), of the irreps that are read later."""
        if not layer.product and tuple(layer.outputs) == tuple(layer.convolved):
            return updated
        kept = Value("atoms", sum(irrep.dim * count for irrep, count in layer.outputs.items()))
        pick(self.tape, _pieces(layer.convolved, layer.outputs), updated, y=kept)
        if layer.product and maps.contract:
            coupled = square(self.tape, layer.product, updated)
            union = sorted({*layer.product.outputs, *layer.outputs})
            weights = self._matrices(maps.contract, f"{layer.name}.contract", union)
            mix(self.tape, weights, coupled, y=kept)
        return kept

    def _gated(self, layer: LayerLayout, features: Value) -> Value:
        """Scalars by SiLU and all others by gates that scalars open, between layers."""
        if not self.spec.gate or layer.last:
            return features
        gated = {irrep: count for irrep, count in layer.outputs.items() if irrep != SCALAR}
        logits = tuple(
            self._read_channels(layer, features, SCALAR, f"gate.{irrep}", count)
            for irrep, count in gated.items()
        )
        return gate(self.tape, features, tuple(irrep.dim for irrep in gated), logits)

    def _table(self, layer: LayerLayout) -> Value:
        """Coefficients of the splines through the radial network."""
        spec, name = self.spec, layer.name
        width = sum(len(group.plan.paths) * group.channels for group in layer.groups)
        rows = spec.radial_knots + 3
        if self.folded:
            return self.params.setdefault(f"{name}.{TABLE}", Value(rows, width))
        radial, real = Radial(spec, "plain"), torch.empty(0, dtype=torch.float64)
        basis = radial.basis_at_knots(torch.float64, torch.device("cpu")).numpy()
        value = Value(spec.radial_knots + 1, spec.radial_basis, basis)
        for k in range(len(spec.radial_hidden)):
            weight = self.weight(f"{name}.radial.{k}")
            value = silu(self.tape, self.linear(value, weight, value.width))
        solve = coefficients(spec.radial_knots, real, first=radial.first_interval()).numpy()
        solver = Value(rows, spec.radial_knots + 1, solve)
        solved = self.linear(solver, value, solver.width, scale=1.0)
        last = self.weight(f"{name}.radial.{len(spec.radial_hidden)}")
        return self.linear(solved, last, solved.width)

    def _readout(self, layer: LayerLayout, index: int, features: Value) -> None:
        spec, name, hidden = self.spec, layer.name, self.spec.readout_hidden
        pre = self._read_channels(layer, features, SCALAR, "readout.hidden", hidden)
        quadrupoles = self.columns.quadrupoles if QUADRUPOLE in layer.outputs else 0
        channels = gating = None
        if quadrupoles:
            gated = quadrupoles * QUADRUPOLE_CHANNELS
            channels = self._read_channels(layer, features, QUADRUPOLE, "readout.quadrupole", gated)
            gating = self.weight(f"{name}.readout.gates")
        sizes = ReadoutSizes(
            hidden=hidden,
            scalars=self.columns.scalars,
            quadrupoles=quadrupoles,
            numbers=self.numbers.width,
            place=index * hidden,
            kept=self.hidden.width,
            factor=hidden_factor(spec),
            slope=spec.scale,
        )
        scalars = self.weight(f"{name}.readout.scalars")
        read(self.tape, Readout(sizes, pre, scalars, channels, gating, self.numbers, self.hidden))

    def _read_channels(
        self, layer: LayerLayout, features: Value, wanted: Irrep, name: str, after: int
    ) -> Value:
        """A map of one irrep of the features."""
        blocks = tuple(
            Block(irrep.dim, count, after if irrep == wanted else 0, 1 / math.sqrt(count))
            for irrep, count in layer.outputs.items()
        )
        weight = self.weight(f"{layer.name}.{name}")
        values = tuple(weight if irrep == wanted else None for irrep in layer.outputs)
        return mix(self.tape, Matrices(Mixing(blocks), values, 1, self.whole), features)


def _graph(spec: RaceSpec) -> Graph:
    close: NDArray[np.float64] | None = None
    if spec.shortest:
        cpu = torch.device("cpu")
        close = close_pairs(spec.elements, spec.shortest, torch.float64, cpu).numpy()
    kinds = len(spec.elements)
    return Graph(
        positions=Value("atoms", 3),
        cell=Value("structures", 9),
        shifts=Value("edges", 3),
        edges=Value("edges", 2),
        senders=Value("edges", 1),
        pair=Value("edges", 1),
        pair_edges=Value("pairs", 2),
        first_edge=Value("atoms", 1),
        owner=Value("atoms", 1),
        species=Value("atoms", 1),
        close=None if close is None else Value(6, kinds * kinds, close),
    )


def _pieces(channels: Channels, wanted: Channels) -> tuple[tuple[int, int, int], ...]:
    """Columns (from, to, width) of the wanted irreps."""
    starts: dict[Irrep, int] = {}
    start = 0
    for irrep, count in channels.items():
        starts[irrep] = start
        start += irrep.dim * count
    pieces, to = [], 0
    for irrep, count in wanted.items():
        pieces.append((starts[irrep], to, irrep.dim * count))
        to += irrep.dim * count
    return tuple(pieces)
