"""Weights that jitter: an isotropic Gaussian around the trained ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Ge, Gt

from bayrace.core.outputs import Params
from bayrace.posterior.method import Example, FitTask, Fitted, PosteriorMethod


@dataclass(frozen=True)
class JitterOptions(PosteriorMethod):
    """Weights that jitter alike in all directions."""

    name: ClassVar[str] = "jitter"
    width: Annotated[float, Gt(0)] = 0.01
    """Standard deviation of every weight."""
    samples: Annotated[int, Ge(1)] = 4
    """Weight samples of a prediction."""

    def fit(self, task: FitTask) -> Fitted:
        return Fitted(Jitter(task.weights, self.width, self.samples))

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Jitter:
        return Jitter.restore(tensors, options)

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        return {cls.name: lambda _, params: Jitter(params, 0.05, 3)}


@dataclass(frozen=True, eq=False)
class Jitter:
    """The Gaussian."""

    name: ClassVar[str] = "jitter"
    params: Params
    width: float
    samples: int

    def draw(self, samples: int, *, seed: int) -> Params:
        if samples < 1:
            raise ValueError(f"samples={samples}: draw at least 1")
        random = torch.Generator().manual_seed(seed)
        return {
            name: value
            + self.width
            * torch.randn(samples, *value.shape, generator=random, dtype=torch.float64).to(value)
            for name, value in self.params.items()
        }

    def tensors(self) -> Params:
        return dict(self.params)

    def options(self) -> dict[str, Any]:
        return {"width": self.width, "samples": self.samples}

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        return cls(dict(tensors), options["width"], options["samples"])

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        moved = {name: value.to(device=device, dtype=dtype) for name, value in self.params.items()}
        return type(self)(moved, self.width, self.samples)
