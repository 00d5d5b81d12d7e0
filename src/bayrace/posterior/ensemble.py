"""A deep ensemble (Lakshminarayanan 2017): weights of independent trainings, equally likely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Ge

from bayrace.core.outputs import Params
from bayrace.core.protocols import Posterior
from bayrace.posterior.example import SAMPLES, moved
from bayrace.posterior.method import Example, PosteriorMethod
from bayrace.posterior.stored import Group, Layout


@dataclass(frozen=True)
class EnsembleOptions(PosteriorMethod):
    """Several trainings, independent of each other."""

    name: ClassVar[str] = "ensemble"
    trains: ClassVar = "several"
    members: Annotated[int, Ge(2)] = 10
    """Trainings with different seeds."""

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Ensemble:
        """The stored members."""
        return Ensemble.restore(tensors, options)

    @classmethod
    def layout(cls, posterior: Posterior) -> Layout:  # noqa: ARG003
        """The members."""
        return Layout((Group("", 1),))

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Of members near the weights."""
        return {
            cls.name: lambda _, params: Ensemble.of(
                [moved(params, seed) for seed in range(SAMPLES)]
            )
        }


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Equal posterior mass on the weights of each training; implements `Posterior`."""

    name: ClassVar[str] = "ensemble"
    members: Params  # (M, ...) each

    def __post_init__(self) -> None:
        counts = {value.shape[0] if value.ndim else 0 for value in self.members.values()}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(
                f"weights of {sorted(counts)} members; every tensor must hold the same number, "
                "at least one"
            )

    @staticmethod
    def of(members: Sequence[Params]) -> Ensemble:
        """The ensemble of weights without a leading dimension, in their order."""
        return Ensemble({name: torch.stack([m[name] for m in members]) for name in members[0]})

    @property
    def samples(self) -> int:
        """Number of members, M."""
        return next(iter(self.members.values())).shape[0]

    def draw(self, samples: int, *, seed: int) -> Params:
        """All members in their order, or fewer, chosen at random without repetition."""
        if not 1 <= samples <= self.samples:
            raise ValueError(f"samples={samples}: this ensemble has 1 to {self.samples} to draw")
        if samples == self.samples:
            return dict(self.members)
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(self.samples, generator=generator)[:samples].sort().values
        return {name: value[chosen.to(value.device)] for name, value in self.members.items()}

    def tensors(self) -> Params:
        """The members."""
        return dict(self.members)

    def options(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:  # noqa: ARG003
        """The ensemble of these members."""
        return cls(dict(tensors))

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        return type(self)({k: v.to(device=device, dtype=dtype) for k, v in self.members.items()})


METHODS = (EnsembleOptions,)
