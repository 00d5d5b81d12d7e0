"""Gates as an operation on a tape: SiLU of scalars, and all other irreps times 2σ of logits."""

from __future__ import annotations

from dataclasses import dataclass

from bayrace.nn.program.tape import Source, Step, Tape, Value

_GATE = Source("gate.c")


@dataclass(frozen=True, eq=False)
class Gate:
    """Features whose first `channels` are scalars; irreps of `dims` components follow them."""

    channels: int
    dims: tuple[int, ...]
    x: Value
    logits: tuple[Value, ...]  # (atoms, channels) of each of these irreps
    y: Value

    @property
    def own(self) -> tuple[int, ...]:
        """In the order of the C source."""
        return self.channels, len(self.dims), *self.dims

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Features and logits."""
        return self.x, *self.logits

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Gated features."""
        return (self.y,)

    def reverse(self, tape: Tape) -> None:
        """By features and logits."""
        into = tuple(tape.gradient(value) for value in self.inputs)
        operation = GateBack(self, tape.gradient(self.y), into)
        tape.record(operation, Step(_GATE, "gate_back", self.own, operation.inputs, into))


@dataclass(frozen=True, eq=False)
class GateBack:
    """The reverse of `Gate`."""

    gate: Gate
    g: Value
    outputs: tuple[Value, ...]  # gradients of features and logits

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What was gated, and the gradient of the result."""
        return *self.gate.inputs, self.g

    def reverse(self, tape: Tape) -> None:
        """How it changes with the gradient, in which it is linear, and with what was gated."""
        along = tuple(tape.gradient(value) for value in self.outputs)
        into = tuple(tape.gradient(value) for value in (self.g, *self.gate.inputs))
        inputs = (*self.inputs, *along)
        tape.steps.append(Step(_GATE, "gate_tangent", self.gate.own, inputs, into))


def gate(tape: Tape, x: Value, dims: tuple[int, ...], logits: tuple[Value, ...]) -> Value:
    """Gated features (atoms, (1 + Σ dims) · channels)."""
    channels = x.width // (1 + sum(dims))
    operation = Gate(channels, dims, x, logits, Value(x.rows, x.width))
    step = Step(_GATE, "gate", operation.own, operation.inputs, operation.outputs)
    tape.record(operation, step)
    return operation.y
