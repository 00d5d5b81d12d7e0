"""A point estimate: one set of weights, no ignorance about them."""

from __future__ import annotations

from dataclasses import dataclass

from bayrace.types import Params


@dataclass(frozen=True, eq=False)
class Point:
    """All posterior mass on the weights that training found."""

    params: Params  # of one member, without a leading dimension

    def draw(self, samples: int, *, seed: int) -> Params:  # noqa: ARG002 - nothing is random here
        """Copies of the weights stacked along a leading dimension of length `samples`.

        The copies are views of one tensor; clone them before writing into them.
        """
        if samples < 1:
            raise ValueError(f"samples={samples}: draw at least 1; a point needs no more than 1")
        return {name: value.expand(samples, *value.shape) for name, value in self.params.items()}
