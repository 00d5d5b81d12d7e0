"""A network written down as steps on named arrays, and the steps of its derivatives.

Operations put their steps on a tape, and each knows how to put those of its reverse there. So does
reverse mode, twice: once by positions, for forces, and once more by parameters, for training on
energies and forces. Nothing is computed here; `bayrace.nn.program.engine` runs what was written.

An array may be written by several steps, which then add to it; whatever reads it comes after all of
them. That is how gradients meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Rows = str | int
"""How many rows an array has: "atoms", "pairs", "structures", or a number."""


@dataclass(frozen=True, eq=False)
class Value:
    """An array of a program; `constant` where its numbers are known beforehand."""

    rows: Rows
    width: int
    constant: NDArray[np.float64] | NDArray[np.int64] | None = None

    @property
    def numbers(self) -> int:
        """How many there are, where the rows are a number."""
        assert isinstance(self.rows, int)
        return self.rows * self.width


@dataclass(frozen=True)
class Source:
    """Where a kernel comes from: a file of this folder, and what is filled in."""

    file: str
    key: str = ""  # of a plan or product
    channels: int = 0
    fixed: bool = False  # features that do not move with the positions


@dataclass(frozen=True, eq=False)
class Step:
    """One call of a kernel. Floats among its `own` numbers are passed on as doubles."""

    source: Source
    name: str
    own: tuple[int | float, ...]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]


class Operation(Protocol):
    """Something with a derivative."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What the results depend on."""
        ...

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The results."""
        ...

    def reverse(self, tape: Tape) -> None:
        """Add to the gradients of the active inputs, given those of the outputs."""
        ...


@dataclass(eq=False)
class Tape:
    """Steps in their order, and the operations that they belong to."""

    steps: list[Step] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    gradients: dict[Value, Value] = field(default_factory=dict)
    active: set[Value] = field(default_factory=set)
    turned: dict[tuple[Value, int], Value] = field(default_factory=dict)  # transposed matrices
    learning: bool = False  # the gradients are those by parameters

    def record(self, operation: Operation, *steps: Step) -> None:
        """Write down an operation."""
        self.operations.append(operation)
        self.steps.extend(steps)

    def gradient(self, value: Value) -> Value:
        """The array for the gradient of a value."""
        return self.gradients.setdefault(value, Value(value.rows, value.width))

    def gradient_if_active(self, value: Value | None) -> Value | None:
        """The same, None where nobody asks for it."""
        return self.gradient(value) if value is not None and value in self.active else None

    def differentiate(
        self, seeds: dict[Value, Value], wanted: tuple[Value, ...], *, learning: bool
    ) -> dict[Value, Value]:
        """Write down the gradients by the wanted values, given those of the results."""
        self.learning, self.gradients, self.active = learning, dict(seeds), set(wanted)
        for operation in self.operations:
            if self.active.intersection(operation.inputs):
                self.active.update(operation.outputs)
        for operation in reversed(list(self.operations)):
            known = any(value in self.gradients for value in operation.outputs)
            if known and self.active.intersection(operation.outputs):
                operation.reverse(self)
        return {value: self.gradients[value] for value in wanted if value in self.gradients}
