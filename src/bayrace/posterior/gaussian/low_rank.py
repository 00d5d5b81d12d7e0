"""The Gaussian of SWAG: a diagonal and a low-rank covariance, from snapshots of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.posterior.shifts import Shifts, moved
from bayrace.train import checkpoint
from bayrace.train.normal import generator, normal_like

Scaling = Literal["maddox", "paper"]


@dataclass(frozen=True, eq=False)
class Swag:
    """The Gaussian; implements `Posterior`."""

    name: ClassVar[str] = "swag"
    mean: Params
    variance: Params  # of each weight, not negative
    deviations: Params  # (K, ...), columns of D
    scaling: Scaling
    samples: int  # of a prediction
    energy_shifts: Shifts | None = None  # of the samples; None in older files

    def draw(self, samples: int, *, seed: int) -> Params:
        """Weight samples; the k-th is the same however many are drawn."""
        if samples < 1:
            raise ValueError(f"samples={samples}: draw at least 1, for example {self.samples}")
        members = [self._one(generator(seed, index)) for index in range(samples)]
        return {name: torch.stack([member[name] for member in members]) for name in self.mean}

    def _one(self, stream: torch.Generator) -> Params:
        rank = next(iter(self.deviations.values())).shape[0]
        along = torch.randn(rank, generator=stream, dtype=torch.float64)
        along /= math.sqrt(rank - 1) * (math.sqrt(2) if self.scaling == "maddox" else 1.0)
        across = normal_like(self.mean, stream)
        return {
            name: mean
            + math.sqrt(0.5) * self.variance[name].sqrt() * across[name]
            + torch.einsum("k,k...->...", along.to(mean), self.deviations[name])
            for name, mean in self.mean.items()
        }

    def shifts(self, samples: int, *, seed: int) -> Tensor | None:
        """Energy of each element that goes with each sample; see `Shifted`."""
        return None if self.energy_shifts is None else self.energy_shifts.of(samples, seed=seed)

    def shifted(self, shifts: Shifts | None) -> Self:
        """The same weights with these shifts."""
        return replace(self, energy_shifts=shifts)

    def held(self, mean: Params, masks: Params) -> Self:
        """With this mean, and without variance where a mask is 1."""
        free = {name: 1 - mask for name, mask in masks.items()}
        variance = {k: v * free.get(k, 1) for k, v in self.variance.items()}
        deviations = {k: v * free.get(k, 1) for k, v in self.deviations.items()}
        return replace(
            self, mean=mean, variance=variance, deviations=deviations, energy_shifts=None
        )

    def tensors(self) -> Params:
        """Mean, variance and deviations, and shifts."""
        gaussian = {"mean": self.mean, "variance": self.variance, "deviations": self.deviations}
        shifts = {} if self.energy_shifts is None else self.energy_shifts.tensors()
        return checkpoint.flatten(gaussian) | shifts

    def options(self) -> dict[str, Any]:
        """Scaling and number of samples."""
        return {"scaling": self.scaling, "samples": self.samples}

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        """The posterior that `tensors` and `options` came from."""
        groups = {key: checkpoint.group(tensors, key) for key in ("mean", "variance", "deviations")}
        scaling, samples = options["scaling"], options["samples"]
        return cls(
            **groups, scaling=scaling, samples=samples, energy_shifts=Shifts.restore(tensors)
        )

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        return moved(self, device=device, dtype=dtype)


@dataclass(frozen=True, eq=False)
class Collector:
    """Running moments of the snapshots seen so far, in float64 by Welford's updates."""

    rank: int  # K, deviations that are kept
    count: int
    mean: Params
    squares: Params  # sums of squared deviations from the mean
    deviations: tuple[Params, ...]  # of the last K snapshots

    @staticmethod
    def empty(rank: int) -> Collector:
        """Before the first snapshot."""
        return Collector(rank, 0, {}, {}, ())

    def add(self, params: Params) -> Collector:
        """With one more snapshot; nothing is changed in place."""
        seen = {name: value.detach().cpu().double() for name, value in params.items()}
        count = self.count + 1
        mean, squares, deviation = {}, {}, {}
        for name, value in seen.items():
            before = value - self.mean.get(name, torch.zeros_like(value))
            mean[name] = value - before * (1 - 1 / count)
            deviation[name] = value - mean[name]
            squares[name] = self.squares.get(name, 0.0) + before * deviation[name]
        kept = (*self.deviations, deviation)[-self.rank :]
        return Collector(self.rank, count, mean, squares, kept)

    def posterior(self, *, scaling: Scaling, samples: int, dtype: torch.dtype) -> Swag:
        """The Gaussian of what was seen."""
        if self.count < 2:
            raise ValueError(
                f"swag: {self.count} snapshots; a variance needs at least 2: train for more epochs"
            )
        variance = {k: (v / self.count).clamp(min=0) for k, v in self.squares.items()}
        stacked = {k: torch.stack([d[k] for d in self.deviations]) for k in self.mean}
        return Swag(self.mean, variance, stacked, scaling, samples).to(dtype=dtype)
