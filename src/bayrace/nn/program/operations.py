"""Geometry, messages and products as operations on a tape.

Each has a reverse by positions and one by parameters. The latter also takes what the former left
behind: gradients by parameters of gradients by positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bayrace.nn.contraction import SelfProduct
from bayrace.nn.plan import Plan
from bayrace.nn.program.tape import Source, Step, Tape, Value


class Graph(NamedTuple):
    """The arrays of a GraphBatch, and the table of `short_range` where there is one."""

    positions: Value
    cell: Value
    shifts: Value
    edges: Value  # receivers, then senders
    senders: Value
    pair: Value
    pair_edges: Value
    first_edge: Value
    owner: Value
    species: Value
    close: Value | None

    @property
    def geometry(self) -> tuple[Value | None, ...]:
        """What geometry.c reads."""
        places = (self.positions, self.cell, self.shifts, self.edges, self.pair_edges)
        return (*places, self.owner, self.species, self.close)

    @property
    def by_receiver(self) -> tuple[Value, ...]:
        """What passes over the edges of a receiver read."""
        return self.first_edge, self.senders, self.pair, self.pair_edges

    @property
    def by_pair(self) -> tuple[Value, ...]:
        """What passes over pairs read."""
        return self.edges, self.senders, self.pair_edges


_GEOMETRY = Source("geometry.c")


@dataclass(frozen=True, eq=False)
class Geometry:
    """Distances and harmonics of pairs, and the repulsion (atoms, 1) of those too close."""

    graph: Graph
    own: tuple[int, ...]
    distances: Value
    harmonics: Value
    repulsion: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Positions; the cell moves with a strain."""
        return (self.graph.positions,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What messages depend on."""
        return self.distances, self.harmonics

    def reverse(self, tape: Tape) -> None:
        """Gradients by positions and by a strain."""
        given = tuple(tape.gradient(value) for value in self.outputs)
        virial = Value("structures", 9)
        operation = GeometryBack(self, given, tape.gradient(self.graph.positions), virial)
        inputs = (*self.graph.geometry, *given)
        step = Step(_GEOMETRY, "geometry_back", self.own, inputs, operation.outputs)
        tape.record(operation, step)


@dataclass(frozen=True, eq=False)
class GeometryBack:
    """The reverse of `Geometry`."""

    geometry: Geometry
    given: tuple[Value, ...]
    positions: Value  # gradient (atoms, 3)
    virial: Value  # gradient by a strain (structures, 9)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Gradients of distances and harmonics."""
        return self.given

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Gradients of positions and of a strain."""
        return self.positions, self.virial

    def reverse(self, tape: Tape) -> None:
        """How distances and harmonics change along the gradients of the gradients."""
        into = tuple(tape.gradient(value) for value in self.given)
        along = tuple(tape.gradients.get(value) for value in self.outputs)
        inputs = (*self.geometry.graph.geometry, *along)
        tape.steps.append(Step(_GEOMETRY, "geometry_tangent", self.geometry.own, inputs, into))


def geometry(tape: Tape, graph: Graph, *, degree: int, elements: int) -> Geometry:
    """Distances, harmonics up to a degree, and repulsion."""
    results = Value("pairs", 1), Value("pairs", (degree + 1) ** 2), Value("atoms", 1)
    operation = Geometry(graph, (degree, elements), *results)
    tape.record(operation, Step(_GEOMETRY, "geometry", operation.own, graph.geometry, results))
    return operation


@dataclass(eq=False)
class Send:
    """Messages summed at their receivers."""

    source: Source
    own: tuple[int | float, ...]
    graph: Graph
    x: Value
    geometry: Geometry
    table: Value
    out: Value
    back: SendBack | None = None  # the reverse by positions
    moved: tuple[Value | None, ...] = ()  # gradients of what it gave

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Features, distances, harmonics, coefficients of the splines."""
        return self.x, *self.geometry.outputs, self.table

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Messages."""
        return (self.out,)

    def reverse(self, tape: Tape) -> None:
        """By positions, or by parameters."""
        g = tape.gradient(self.out)
        if tape.learning:
            assert self.back is not None
            into = (tape.gradient(self.x), tape.gradient(self.table))
            inputs = (*self.graph.by_pair, g, self.back.g, *self.inputs, *self.moved)
            tape.steps.append(Step(self.source, "send_reverse", self.own, inputs, into))
            return
        gx = tape.gradient_if_active(self.x)
        gd, gy = (tape.gradient(value) for value in self.geometry.outputs)
        self.back = SendBack(self, g, gx, gd, gy)
        inputs = (*self.graph.by_pair, g, *self.inputs)
        tape.record(self.back, Step(self.source, "send_back", self.own, inputs, (gx, gd, gy)))


@dataclass(frozen=True, eq=False)
class SendBack:
    """The reverse of `Send` by positions."""

    send: Send
    g: Value
    gx: Value | None
    gd: Value
    gy: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The gradient of the messages, and what they were made of."""
        return self.g, *self.send.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Gradients of features, distances and harmonics."""
        return tuple(value for value in (self.gx, self.gd, self.gy) if value is not None)

    def reverse(self, tape: Tape) -> None:
        """The change of the messages; the rest waits for the reverse of `Send`."""
        send = self.send
        send.moved = tuple(
            None if value is None else tape.gradient(value) for value in (self.gx, self.gd, self.gy)
        )
        tape.gradient(send.out)  # `Send` has a reverse even where nothing else reaches it
        inputs = (*send.graph.by_receiver, *send.inputs, *send.moved)
        into = (tape.gradient(self.g),)
        tape.steps.append(Step(send.source, "send_tangent", send.own, inputs, into))


class Splines(NamedTuple):
    """Coefficients (intervals + 3, paths · channels) up to a cutoff."""

    table: Value
    intervals: int
    cutoff: float


def send(tape: Tape, plan: Plan, x: Value, geometry: Geometry, splines: Splines) -> Value:
    """Messages (atoms, plan.rows · channels) from features (atoms, plan.input_dim · channels)."""
    channels = x.width // plan.input_dim
    moves = any(isinstance(each, Send) for each in tape.operations)
    source = Source("messages.c", plan.key, channels, fixed=not moves)
    out = Value("atoms", plan.rows * channels)
    own = (splines.intervals, splines.intervals / splines.cutoff)
    operation = Send(source, own, geometry.graph, x, geometry, splines.table, out)
    inputs = (*geometry.graph.by_receiver, *operation.inputs)
    tape.record(operation, Step(source, "send", own, inputs, (out,)))
    return out


@dataclass(frozen=True, eq=False)
class Square:
    """A ⊗ A."""

    source: Source
    x: Value
    out: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Features."""
        return (self.x,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Their products."""
        return (self.out,)

    def reverse(self, tape: Tape) -> None:
        """The transposed product."""
        _transposed(tape, self.source, tape.gradient(self.out), self.x, tape.gradient(self.x))


@dataclass(frozen=True, eq=False)
class Transposed:
    """The gradient of Σ g · (x ⊗ x) by x."""

    source: Source
    g: Value
    x: Value
    out: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """A gradient and features."""
        return self.g, self.x

    @property
    def outputs(self) -> tuple[Value, ...]:
        """A gradient."""
        return (self.out,)

    def reverse(self, tape: Tape) -> None:
        """It is linear in either."""
        v = tape.gradient(self.out)
        into = (tape.gradient(self.g),)
        tape.steps.append(Step(self.source, "mixed", (), (self.x, v), into))
        into = (tape.gradient(self.x),)
        tape.steps.append(Step(self.source, "transposed", (), (self.g, v), into))


def square(tape: Tape, product: SelfProduct, x: Value) -> Value:
    """All products (atoms, product.rows · channels) of features."""
    channels = x.width // product.input_dim
    source = Source("products.c", product.key, channels)
    out = Value("atoms", product.rows * channels)
    tape.record(Square(source, x, out), Step(source, "square", (), (x,), (out,)))
    return out


def _transposed(tape: Tape, source: Source, g: Value, x: Value, out: Value) -> None:
    step = Step(source, "transposed", (), (g, x), (out,))
    tape.record(Transposed(source, g, x, out), step)
