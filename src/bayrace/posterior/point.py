"""A point estimate: one set of weights, no ignorance about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from bayrace.core.outputs import Params
from bayrace.core.protocols import Posterior
from bayrace.posterior.method import Example, PosteriorMethod
from bayrace.posterior.stored import Group, Layout


@dataclass(frozen=True)
class PointOptions(PosteriorMethod):
    """One set of weights: no ignorance about them."""

    name: ClassVar[str] = "point"
    keeps_weights: ClassVar[bool] = True

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Point:
        """The stored weights."""
        return Point.restore(tensors, options)

    @classmethod
    def layout(cls, posterior: Posterior) -> Layout:  # noqa: ARG003
        """The weights."""
        return Layout((Group(""),))

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """At the weights."""
        return {cls.name: lambda _, params: Point(params)}


@dataclass(frozen=True, eq=False)
class Point:
    """All posterior mass on the weights that training found; implements `Posterior`."""

    name: ClassVar[str] = "point"
    params: Params  # of one member, without a leading dimension

    @property
    def samples(self) -> int:
        """One is as good as many."""
        return 1

    def draw(self, samples: int, *, seed: int) -> Params:  # noqa: ARG002 - nothing is random here
        """Copies of the weights stacked along a leading dimension of length `samples`.

        The copies are views of one tensor; clone them before writing into them.
        """
        if samples < 1:
            raise ValueError(f"samples={samples}: draw at least 1; a point needs no more than 1")
        return {name: value.expand(samples, *value.shape) for name, value in self.params.items()}

    def tensors(self) -> Params:
        """The weights."""
        return dict(self.params)

    def options(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:  # noqa: ARG003
        """The point at these weights."""
        return cls(dict(tensors))

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        return type(self)({k: v.to(device=device, dtype=dtype) for k, v in self.params.items()})


METHODS = (PointOptions,)
