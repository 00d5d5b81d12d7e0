"""A deep ensemble (Lakshminarayanan 2017): weights of independent trainings, equally likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bayrace.types import Params


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Equal posterior mass on the weights of each training."""

    members: Params  # (M, ...) each

    @staticmethod
    def of(members: Sequence[Params]) -> Ensemble:
        """The ensemble of weights without a leading dimension, in their order."""
        return Ensemble({name: torch.stack([m[name] for m in members]) for name in members[0]})

    @property
    def size(self) -> int:
        """Number of members, M."""
        return next(iter(self.members.values())).shape[0]

    def draw(self, samples: int, *, seed: int) -> Params:
        """All members in their order, or fewer, chosen at random without repetition."""
        if not 1 <= samples <= self.size:
            raise ValueError(f"samples={samples}: this ensemble has 1 to {self.size} to draw")
        if samples == self.size:
            return dict(self.members)
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(self.size, generator=generator)[:samples].sort().values
        return {name: value[chosen.to(value.device)] for name, value in self.members.items()}
