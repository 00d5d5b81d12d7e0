"""Linear maps, copies and activations as operations on a tape."""

from __future__ import annotations

from dataclasses import dataclass

from bayrace.nn.mixing import Mixing
from bayrace.nn.program.tape import Source, Step, Tape, Value

STEPS = Source("steps.c")


@dataclass(frozen=True, eq=False)
class Matrices:
    """The weights of a map: (kinds, K, C) for each block, None where a block has no entries.

    `offsets` is where the rows of each kind start, (kinds + 1,). With `together` all blocks are one
    array (kinds, Σ K · C).
    """

    mixing: Mixing
    values: tuple[Value | None, ...]
    kinds: int
    offsets: Value
    together: bool = False

    @property
    def present(self) -> tuple[Value, ...]:
        """Those that there are."""
        return tuple(value for value in self.values if value is not None)

    def places(self) -> list[tuple[int, int]]:
        """Of each block: where its first matrix starts, and how far it is to the next one."""
        sizes = [block.before * block.after for block in self.mixing.blocks]
        if not self.together:
            return [(0, size) for size in sizes]
        return [(sum(sizes[:k]), sum(sizes)) for k in range(len(sizes))]


@dataclass(frozen=True, eq=False)
class Mix:
    """y += x w, or x w^T where `turned`."""

    x: Value
    weights: Matrices
    turned: bool
    y: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Features and matrices."""
        return self.x, *self.weights.present

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Features."""
        return (self.y,)

    def reverse(self, tape: Tape) -> None:
        """Back by the same matrices, and the outer product for them."""
        g = tape.gradient(self.y)
        if gx := tape.gradient_if_active(self.x):
            mix(tape, self.weights, g, y=gx, turned=not self.turned)
        into = tuple(tape.gradient_if_active(value) for value in self.weights.values)
        if any(into):
            x, y = (g, self.x) if self.turned else (self.x, g)
            weights = self.weights
            own = (weights.kinds, len(into), x.width, y.width, *_fields(weights))
            tape.steps.append(Step(STEPS, "outer", own, (weights.offsets, x, y), into))


def mix(
    tape: Tape, weights: Matrices, x: Value, *, y: Value | None = None, turned: bool = False
) -> Value:
    """Add the map of x to y, to zeros where there is no y yet."""
    mixing = weights.mixing
    after = mixing.before if turned else mixing.after
    y = Value(x.rows, after) if y is None else y
    few = turned and isinstance(x.rows, int)  # not worth a transposed matrix
    matrices = _turned(tape, weights) if turned and not few else weights.values
    fields = _fields(weights, turned=turned, alone=not few)
    own = (weights.kinds, len(matrices), x.width, after, *fields)
    name = "mix_few" if few else "mix"
    step = Step(STEPS, name, own, (weights.offsets, x, *matrices), (y,))
    tape.record(Mix(x, weights, turned, y), step)
    return y


def _fields(weights: Matrices, *, turned: bool = False, alone: bool = True) -> list[int | float]:
    """Of every block: components, numbers before and after, where they start, the factor, places.

    Turned matrices stand `alone`.
    """
    fields: list[int | float] = []
    start_x = start_y = 0
    for block, place in zip(weights.mixing.blocks, weights.places(), strict=True):
        sizes, where = [block.before, block.after, start_x, start_y], place
        if turned:
            sizes = [block.after, block.before, start_y, start_x]
            where = (0, block.before * block.after) if alone else place
        fields += [block.dim, *sizes, float(block.scale), *where]
        start_x += block.dim * block.before
        start_y += block.dim * block.after
    return fields


def _turned(tape: Tape, weights: Matrices) -> tuple[Value | None, ...]:
    """The transposed matrices, made once."""
    found: list[Value | None] = []
    blocks = zip(weights.mixing.blocks, weights.values, weights.places(), strict=True)
    for block, value, (start, stride) in blocks:
        if value is None or not block.before * block.after:
            found.append(None)
            continue
        if (value, start) not in tape.turned:
            turned = Value(weights.kinds, block.before * block.after)
            tape.turned[value, start] = turned
            own = (weights.kinds, block.before, block.after, start, stride)
            tape.steps.append(Step(STEPS, "turn", own, (value,), (turned,)))
        found.append(tape.turned[value, start])
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Broadcast:
    """The row of its element for every atom, in the first columns of y."""

    kinds: Value  # element of every atom
    x: Value
    y: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Rows of elements."""
        return (self.x,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Rows of atoms."""
        return (self.y,)

    def reverse(self, tape: Tape) -> None:
        """Sums over the atoms of an element."""
        if self.x not in tape.active:
            return
        own = (self.x.width, self.y.width, self.x.numbers // self.x.width)
        into = (tape.gradient(self.x),)
        tape.steps.append(Step(STEPS, "gather", own, (self.kinds, tape.gradient(self.y)), into))


def spread(tape: Tape, kinds: Value, x: Value, *, y: Value | None = None) -> Value:
    """Add the row of its element to the first columns of every atom."""
    y = Value("atoms", x.width) if y is None else y
    step = Step(STEPS, "spread", (x.width, y.width), (kinds, x), (y,))
    tape.record(Broadcast(kinds, x, y), step)
    return y


@dataclass(frozen=True, eq=False)
class Pick:
    """Some columns of x are added to some of y: pieces are (from, to, width)."""

    pieces: tuple[tuple[int, int, int], ...]
    x: Value
    y: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Features."""
        return (self.x,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Features."""
        return (self.y,)

    def reverse(self, tape: Tape) -> None:
        """The same columns back."""
        back = tuple((to, source, width) for source, to, width in self.pieces)
        pick(tape, back, tape.gradient(self.y), y=tape.gradient(self.x))


def pick(tape: Tape, pieces: tuple[tuple[int, int, int], ...], x: Value, *, y: Value) -> Value:
    """Add some columns of x to some of y."""
    flat = tuple(number for piece in pieces for number in piece)
    step = Step(STEPS, "pick", (x.width, y.width, len(pieces), *flat), (x,), (y,))
    tape.record(Pick(pieces, x, y), step)
    return y


@dataclass(frozen=True, eq=False)
class Silu:
    """SiLU of parameters; of first order only."""

    x: Value
    y: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Any numbers."""
        return (self.x,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """As many."""
        return (self.y,)

    def reverse(self, tape: Tape) -> None:
        """Times the derivative."""
        own, g, gx = (self.x.numbers,), tape.gradient(self.y), tape.gradient(self.x)
        tape.steps.append(Step(STEPS, "silu_back", own, (self.x, g), (gx,)))


def silu(tape: Tape, x: Value) -> Value:
    """Of a fixed number of rows."""
    y = Value(x.rows, x.width)
    tape.record(Silu(x, y), Step(STEPS, "silu", (x.numbers,), (x,), (y,)))
    return y
