"""Processes that train one network together: who does what, and what they tell each other.

Every process holds the whole network and takes a share of each batch. Gradients are added, and so
are losses, each divided by the labels of the whole batch: a mean of means would weigh structures by
the process that has them. What follows is the same everywhere, bit for bit. The first process
alone writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class LostProcess(ConnectionError):  # noqa: N818  it says what happened
    """Another process of the team ended before its time."""


@dataclass(frozen=True)
class Team:
    """The processes of a training, and which of them this is; one alone talks to nobody."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes, prints and decides."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.size == 1

    def share(self, indices: Sequence[int], work: Sequence[int]) -> list[int]:
        """Which of these structures are ours: about as much `work` as the others have.

        The largest are dealt first, each to whom has the least; ours keep their order.
        """
        if self.alone:
            return list(indices)
        loads = np.zeros(self.size)
        mine = []
        for place in sorted(range(len(indices)), key=lambda k: (-work[k], k)):
            rank = int(np.argmin(loads))
            loads[rank] += work[place] + 1  # an isolated atom is work too
            if rank == self.rank:
                mine.append(place)
        return [indices[place] for place in sorted(mine)]

    def total(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all processes of what each says."""
        if self.alone:
            return list(numbers)
        said = torch.tensor(numbers, dtype=torch.float64)
        with _connected():
            dist.all_reduce(said)
        return [float(number) for number in said]

    def first(self, number: float) -> float:
        """What the first process says."""
        return self.total([number if self.leads else 0.0])[0]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one type by their sums over all processes."""
        if self.alone or not tensors:
            return
        joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _connected():
            dist.all_reduce(joined)
        _spread(joined, tensors)

    @torch.no_grad()
    def same(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of the first process."""
        if not self.alone:
            with _connected():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)

    def gather(self, mine: T) -> list[T]:
        """What every process has, in their order."""
        if self.alone:
            return [mine]
        found: list[T | None] = [None] * self.size
        with _connected():
            dist.all_gather_object(found, mine)
        return [each for each in found if each is not None]

    def wait(self) -> None:
        """Until all processes are here."""
        self.total([0.0])


ALONE = Team()


@contextmanager
def _connected() -> Iterator[None]:
    """Say in our words that the others are gone."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcess(
            f"another process of this training ended ({str(error).splitlines()[0][:120]}); "
            "see its message, and continue with --resume"
        ) from error


@torch.no_grad()
def _spread(joined: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = torch.split(joined, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.reshape(tensor.shape))
