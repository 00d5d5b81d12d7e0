"""IVON (Shen 2024): the Gaussian that variational training ends with; the steps are in train/ivon.

    θ = m + σε,   σ² = 1 / (ess (h + δ))

m is the mean, h the diagonal Hessian of the mean negative log-likelihood of a structure, δ the
weight decay and ess the number of structures the likelihood counts for. Training finds m; its h,
one noisy number a step, is good enough to train by. At the end (not for `hessian="paper"`) h is
measured under the Gaussian itself by the Fisher information, see `bayrace.posterior.fisher`. Noise
heads are refitted at m and do not vary (h = ∞), and every sample has its energy shift
(`bayrace.posterior.settle`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.core.protocols import Likelihood
from bayrace.data.dataset import Dataset
from bayrace.posterior.fisher import Weighted, fisher
from bayrace.posterior.settle import Settling, settle
from bayrace.posterior.shifts import Shifts
from bayrace.train import checkpoint
from bayrace.train.ivon import HessianRule, IvonSettings
from bayrace.train.loop import Event, FitResult
from bayrace.train.loop import fit as train_loop
from bayrace.train.normal import generator, normal_like
from bayrace.train.refit import HeadedModel
from bayrace.train.settings import TrainSettings
from bayrace.train.state import load_last

_STREAM = 2  # apart from other uses of the run's seed


@dataclass(frozen=True)
class IvonOptions:
    """Numbers of the optimiser and of predictions; see `bayrace.train.ivon`."""

    lr: float  # at the start; the run's schedule scales it
    ess: float | Literal["structures", "atoms"]  # a number, or that of the training set
    hess_init: float
    betas: tuple[float, float]
    weight_decay: float  # δ
    clip_radius: float
    hessian: HessianRule
    samples: int  # weight samples of a prediction
    fisher: int  # structures that measure h after averaged training; 0: h is that of the steps

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"ivon: samples={self.samples}: use at least 1, for example 16")


@dataclass(frozen=True, eq=False)
class Ivon:
    """Independent Gaussian weights; implements `Posterior`."""

    name: ClassVar[str] = "ivon"
    mean: Params
    hessian: Params  # h; infinite where a weight does not vary
    ess: float
    weight_decay: float  # δ
    samples: int  # of a prediction
    energy_shifts: Shifts | None = None  # of the samples; None in older files

    def variance(self) -> Params:
        """σ² of each weight."""
        return {k: 1 / (self.ess * (h + self.weight_decay)) for k, h in self.hessian.items()}

    def draw(self, samples: int, *, seed: int) -> Params:
        """Weight samples; the k-th is the same however many are drawn."""
        if samples < 1:
            raise ValueError(f"samples={samples}: draw at least 1, for example {self.samples}")
        noise = [normal_like(self.mean, generator(seed, index)) for index in range(samples)]
        return {
            name: self.mean[name] + variance.sqrt() * torch.stack([each[name] for each in noise])
            for name, variance in self.variance().items()
        }

    def shifts(self, samples: int, *, seed: int) -> Tensor | None:
        """Energy of each element that goes with each sample; see `Shifted`."""
        return None if self.energy_shifts is None else self.energy_shifts.of(samples, seed=seed)

    def shifted(self, shifts: Shifts | None) -> Self:
        """The same weights with these shifts."""
        return replace(self, energy_shifts=shifts)

    def held(self, mean: Params, masks: Params) -> Self:
        """With this mean, and without variance where a mask is 1."""
        firm = {k: self.hessian[k].masked_fill(mask == 1, math.inf) for k, mask in masks.items()}
        return replace(self, mean=mean, hessian=self.hessian | firm, energy_shifts=None)

    def tensors(self) -> Params:
        """Mean and Hessian, and shifts."""
        shifts = {} if self.energy_shifts is None else self.energy_shifts.tensors()
        return checkpoint.flatten({"mean": self.mean, "hessian": self.hessian}) | shifts

    def options(self) -> dict[str, Any]:
        """The numbers that turn the Hessian into variances, and the number of samples."""
        return {"ess": self.ess, "weight_decay": self.weight_decay, "samples": self.samples}

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        """The posterior that `tensors` and `options` came from."""
        groups = {key: checkpoint.group(tensors, key) for key in ("mean", "hessian")}
        return cls(
            **groups,
            ess=options["ess"],
            weight_decay=options["weight_decay"],
            samples=options["samples"],
            energy_shifts=Shifts.restore(tensors),
        )

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        bare = replace(self, energy_shifts=None)
        tensors = {k: v.to(device=device, dtype=dtype) for k, v in bare.tensors().items()}
        moved = self.restore(tensors, self.options())
        return moved.shifted(self.energy_shifts and self.energy_shifts.to(device))


def fit(
    model: HeadedModel,
    likelihood_at: Callable[[int], Likelihood],
    train: Dataset,
    valid: Dataset,
    *,
    settings: TrainSettings,
    folder: Path,
    options: IvonOptions,
    refit_epochs: int,
    initial: Params | None,
    resume: bool = False,
    observer: Callable[[Event], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Ivon, FitResult]:
    """Train the mean, from `initial` or from scratch, and the variances with it.

    Of `settings`, the optimiser is replaced, and averages of weights and limits on the gradient
    are off. Once the likelihood is that of the last epoch (after a warm-up), its `score` is
    minimised: weights such as those of the β-NLL would change the temperature. Mean and Hessian
    are the last ones; `FitResult.params` is the mean of the best validation. A run that `stop`
    ended has a posterior too, of where it was, but neither refitted noise heads nor energy shifts.
    `progress` hears of structures done when the latter are fitted.
    """
    ess = _effective_size(options.ess, train)
    final = likelihood_at(settings.max_epochs - 1)

    def proper(epoch: int) -> Likelihood:
        chosen = likelihood_at(epoch)
        return final.score() if chosen == final else chosen

    result = train_loop(
        model,
        proper,
        train,
        valid,
        settings=_with_ivon(settings, options, ess=ess),
        folder=folder,
        resume=resume,
        observer=observer,
        stop=stop,
        initial=initial,
    )
    mean, state = load_last(Path(folder))
    hessian = checkpoint.group(state, "hessian")
    posterior = Ivon(mean, hessian, ess, options.weight_decay, options.samples)
    posterior = posterior.to(device=settings.device)
    if result.reason == "interrupted":
        return posterior, result
    if options.hessian == "averaged" and options.fisher:
        for count in (max(1, options.fisher // 10), options.fisher):  # the first sets σ
            posterior = _measured(
                posterior, model, final.score(), train, count, settings=settings, progress=progress
            )
    how = Settling(refit_epochs, settings, stop, progress)
    return settle(posterior, model, final, train, valid, how), result


def _measured(
    posterior: Ivon,
    model: HeadedModel,
    likelihood: Likelihood,
    train: Dataset,
    count: int,
    *,
    settings: TrainSettings,
    progress: Callable[[int], None],
) -> Ivon:
    """The posterior with h by the Fisher information of so many structures under its weights."""
    std = {name: variance.sqrt() for name, variance in posterior.variance().items()}

    def draw(place: int) -> Params:
        noise = normal_like(posterior.mean, generator(settings.seed, _STREAM, count, place))
        return {name: mean + std[name] * noise[name] for name, mean in posterior.mean.items()}

    hessian = fisher(
        model,
        cast("Weighted", likelihood),
        train,
        draw,
        structures=count,
        settings=settings,
        progress=progress,
    )
    return replace(posterior, hessian=hessian)


def _effective_size(given: float | Literal["structures", "atoms"], train: Dataset) -> float:
    """How many structures the likelihood counts for.

    The loss is a mean over structures of the energy's term plus the mean over atoms of the forces'.
    With "structures", each energy counts once and the forces of a structure together as one; with
    "atoms", the force on each atom counts once, and the energy of n atoms n times.
    """
    if given == "structures":
        return float(len(train))
    if given == "atoms":
        return float(sum(len(frame.numbers) for frame in train.frames))
    if isinstance(given, str):
        raise ValueError(f"ivon: ess={given!r} is unknown; use structures, atoms or a number")
    return given


def _with_ivon(settings: TrainSettings, options: IvonOptions, *, ess: float) -> TrainSettings:
    optimiser = IvonSettings(
        lr=options.lr,
        ess=ess,
        hess_init=options.hess_init,
        betas=options.betas,
        weight_decay=options.weight_decay,
        clip_radius=options.clip_radius,
        hessian=options.hessian,
    )
    return replace(settings, optimiser=optimiser, clip=None, ema=None)
