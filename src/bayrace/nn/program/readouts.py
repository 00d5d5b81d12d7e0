"""Readouts as operations on a tape: energies and noise heads of a layer."""

from __future__ import annotations

from dataclasses import dataclass, field

from bayrace.nn.program.tape import Source, Step, Tape, Value

_READOUT = Source("readout.c")


@dataclass(frozen=True)
class ReadoutSizes:
    """What readout.c must know; the energy's derivative by the first number is its `slope`."""

    hidden: int
    scalars: int
    quadrupoles: int
    numbers: int
    place: int  # of the kept hidden numbers
    kept: int
    factor: float
    slope: float

    @property
    def own(self) -> tuple[int | float, ...]:
        """In the order of the C source."""
        return (
            self.hidden,
            self.scalars,
            self.quadrupoles,
            self.numbers,
            self.place,
            self.kept,
            float(self.factor),
            float(self.slope),
        )


@dataclass(eq=False)
class Readout:
    """Numbers of a layer, added to those of the others."""

    sizes: ReadoutSizes
    pre: Value
    scalars: Value
    channels: Value | None
    gating: Value | None
    numbers: Value
    kept: Value
    sigmoids: Value = field(init=False)
    moved: Value | None = None  # gradient of what the reverse by positions gave

    def __post_init__(self) -> None:
        self.sigmoids = Value("atoms", self.sizes.hidden)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What comes before the activation, gated channels, and weights."""
        every = (self.pre, self.scalars, self.channels, self.gating)
        return tuple(value for value in every if value is not None)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Energy and heads."""
        return (self.numbers,)

    def reverse(self, tape: Tape) -> None:
        """By positions, of the energy alone; by parameters, of all numbers."""
        if not tape.learning:
            operation = ReadoutBack(self, tape.gradient(self.pre))
            known = (self.pre, self.sigmoids, self.scalars)
            step = Step(_READOUT, "readout_back", self.sizes.own, known, operation.outputs)
            tape.record(operation, step)
            return
        given = (self.pre, self.sigmoids, self.scalars, self.channels, self.gating)
        cotangents = (tape.gradient(self.numbers), self.moved)
        into = tuple(
            None if value is None else tape.gradient(value)
            for value in (self.pre, self.scalars, self.channels, self.gating)
        )
        inputs = (*given, *cotangents)
        tape.steps.append(Step(_READOUT, "readout_reverse", self.sizes.own, inputs, into))


@dataclass(frozen=True, eq=False)
class ReadoutBack:
    """The reverse of `Readout` by positions."""

    readout: Readout
    out: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What comes before the activation, and the weights of the energy."""
        return self.readout.pre, self.readout.scalars

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The gradient of the former."""
        return (self.out,)

    def reverse(self, tape: Tape) -> None:
        """It waits for the reverse of `Readout`."""
        self.readout.moved = tape.gradient(self.out)


def read(tape: Tape, readout: Readout) -> None:
    """Write down a readout."""
    inputs = (readout.pre, readout.scalars, readout.channels, readout.gating)
    outputs = (readout.numbers, readout.kept, readout.sigmoids)
    tape.record(readout, Step(_READOUT, "readout", readout.sizes.own, inputs, outputs))
