"""IVON (Shen 2024): the Gaussian that variational training ends with; the steps are in train/ivon.

    θ = m + σε,   σ² = 1 / (ess (h + δ))

m is the mean, h the diagonal Hessian of the mean negative log-likelihood of a structure, δ the
weight decay and ess the number of structures the likelihood counts for.

A step scaled by weight after weight is a poor one for networks whose weights act together: from
scratch, IVON has several times the errors of Muon after as many steps. So the run's own optimiser
trains the network for the fraction `start` of the training, noise heads are refitted, and IVON has
the rest, in a folder of its own. `start=0` is IVON from the first step on, as published.

Training finds m; its h, one noisy number a step, is good enough to train by. At the end (not for
`hessian="paper"`) h is measured under the Gaussian itself by the Fisher information, see
`bayrace.posterior.fisher`. Noise heads are refitted at m and do not vary (h = ∞), and every sample
has its energy shift (`bayrace.posterior.finish`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.core.protocols import Likelihood, Posterior
from bayrace.data.dataset import Dataset
from bayrace.models.noise import noise_spec_of
from bayrace.posterior.example import SAMPLES, STEP
from bayrace.posterior.finish import finished, refitted
from bayrace.posterior.fisher import Weighted, fisher
from bayrace.posterior.method import Example, FitTask, Fitted, PosteriorMethod
from bayrace.posterior.shifts import Shifts, moved
from bayrace.posterior.stored import MOST_SAMPLES, Group, Layout
from bayrace.train import checkpoint
from bayrace.train.ivon import HessianRule, IvonSettings
from bayrace.train.loop import FitResult
from bayrace.train.loop import fit as train_loop
from bayrace.train.normal import generator, normal_like
from bayrace.train.settings import TrainSettings
from bayrace.train.state import load_last
from bayrace.train.task import Task

_STREAM = 2  # apart from other uses of the run's seed


_Beta = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True)
class IvonOptions(PosteriorMethod):
    """Variational training: a Gaussian of the weights is trained at its end, or all through."""

    name: ClassVar[str] = "ivon"
    trains: ClassVar = "itself"
    start: Annotated[float, Ge(0), Lt(1)] = 0.75
    """Fraction of the training (epochs and time) that its own optimiser does before IVON; 0: IVON
    from scratch, as the paper does, with lr 0.05 and hess_init 0.5."""
    lr: Annotated[float, Gt(0)] = 0.0005
    """Learning rate of IVON at its start; the schedule of the training scales it."""
    ess: Literal["structures", "atoms"] | Annotated[float, Gt(0)] = 1e5
    """Effective sample size: a number, or that of the training set: structures (the theory, but so
    hot that small sets diverge) or atoms."""
    hess_init: Annotated[float, Gt(0)] = 100.0
    """Curvature of the loss (Hessian) that is assumed before the first step."""
    betas: tuple[_Beta, _Beta] = (0.9, 0.999995)
    """Parts of the running means of the gradient and of the Hessian that a step keeps (0 to 1)."""
    weight_decay: Annotated[float, Gt(0)] = 1e-4
    """δ, which draws weights to 0: the precision of their prior divided by ess."""
    clip_radius: Annotated[float, Gt(0)] = 1.0
    """Largest change of a weight in a step, in units of the learning rate."""
    hessian: HessianRule = "averaged"
    """averaged: a mean over the run that forgets its start; paper: by betas."""
    samples: Annotated[int, Ge(1), Le(MOST_SAMPLES)] = 16
    """Weight samples of a prediction."""
    fisher: Annotated[int, Ge(0)] = 1000
    """averaged: training structures, drawn again and again, whose Fisher information gives the
    variances after training; 0: those of the training itself."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < 1:
            raise ValueError(f"ivon: start={self.start}: give a fraction from 0 up to 1, as 0.75")
        if self.samples < 1:
            raise ValueError(f"ivon: samples={self.samples}: use at least 1, for example 16")

    def fit(self, task: FitTask) -> Fitted:
        """Train, from the task's weights or, if there are none, from the beginning."""
        return Fitted(*fit(task, self))

    def first_epochs(self, epochs: int) -> int:
        """How many epochs of a training are not IVON's, which has one at least."""
        return min(round(self.start * epochs), epochs - 1)

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Ivon:
        """The stored Gaussian."""
        return Ivon.restore(tensors, options)

    @classmethod
    def layout(cls, posterior: Posterior) -> Layout:
        """Mean and Hessian, of which h + δ counts; an infinite one holds its weight."""
        least = -float(posterior.options()["weight_decay"])
        return Layout((Group("mean/"), Group("hessian/", least=least, finite=False)))

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Around the weights."""
        return {cls.name: lambda _, params: _example(params)}


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
        return moved(self, device=device, dtype=dtype)


def fit(task: FitTask, options: IvonOptions) -> tuple[Ivon | None, FitResult]:
    """Train the network and then its Gaussian; where there are weights already, the Gaussian alone.

    In the part that is IVON's the optimiser is replaced, and averages of weights and limits on the
    gradient are off. A network that is trained here has `task.folder`, IVON the folder of its name
    inside. `FitResult.params` is the mean of the best validation in that last part. A run that
    `stop` ended in it has a posterior too, of where it was, but neither refitted noise heads nor
    energy shifts; one that was ended before has none.
    """
    first = options.first_epochs(task.settings.max_epochs)
    if task.params is not None or first == 0:
        return _variational(task, options, first)
    folder = task.folder / options.name
    begun = task.resume and (folder / checkpoint.LAST).is_file()
    if not begun:  # else the network is trained, and IVON goes on where it was
        network = _network(task, options, first)
        if network.reason == "interrupted":
            return None, network
        params = network.params
        if task.refit_epochs and noise_spec_of(task.model).kind in ("energy", "joint"):
            params = refitted(task, params)
        task = replace(task, params=params)
    return _variational(replace(task, folder=folder, resume=begun), options, first)


def _network(task: FitTask, options: IvonOptions, epochs: int) -> FitResult:
    """The first part: an ordinary training that is as much shorter."""
    settings = task.settings
    limit = None if settings.max_time is None else options.start * settings.max_time
    shorter = replace(settings, max_epochs=epochs, max_time=limit)
    return train_loop(
        Task(task.model, task.likelihood_at, task.train, task.valid, shorter, task.folder),
        resume=task.resume,
        callbacks=task.callbacks,
    )


def _variational(task: FitTask, options: IvonOptions, first: int) -> tuple[Ivon, FitResult]:
    """The part that is IVON's, after `first` epochs, from `task.params` or from scratch.

    Once the likelihood is that of the last epoch (after a warm-up), its `score` is minimised:
    weights such as those of the β-NLL would change the temperature. Mean and Hessian are the last
    ones.
    """
    settings = task.settings
    ess = _effective_size(options.ess, task.train)
    final = task.likelihood_at(settings.max_epochs - 1)

    def proper(epoch: int) -> Likelihood:
        chosen = task.likelihood_at(first + epoch)
        return final.score() if chosen == final else chosen

    left = 1 - options.start if first else 1.0
    limit = None if settings.max_time is None else left * settings.max_time
    rest = replace(settings, max_epochs=settings.max_epochs - first, max_time=limit)
    result = train_loop(
        Task(
            task.model,
            proper,
            task.train,
            task.valid,
            _with_ivon(rest, options, ess=ess),
            task.folder,
        ),
        resume=task.resume,
        initial=task.params,
        callbacks=task.callbacks,
    )
    mean, state = load_last(task.folder)
    hessian = checkpoint.group(state, "hessian")
    posterior = Ivon(mean, hessian, ess, options.weight_decay, options.samples)
    posterior = posterior.to(device=settings.device)
    if result.reason == "interrupted":
        return posterior, result
    if options.hessian == "averaged" and options.fisher:
        for count in (max(1, options.fisher // 10), options.fisher):  # the first sets σ
            posterior = _measured(posterior, task, final.score(), count)
    return finished(posterior, task), result


def _measured(posterior: Ivon, task: FitTask, likelihood: Likelihood, count: int) -> Ivon:
    """The posterior with h by the Fisher information of so many structures under its weights."""
    std = {name: variance.sqrt() for name, variance in posterior.variance().items()}

    def draw(place: int) -> Params:
        noise = normal_like(posterior.mean, generator(task.settings.seed, _STREAM, count, place))
        return {name: mean + std[name] * noise[name] for name, mean in posterior.mean.items()}

    hessian = fisher(
        task.model,
        cast("Weighted", likelihood),
        task.train,
        draw,
        structures=count,
        settings=task.settings,
        progress=task.callbacks.progress,
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
    return replace(settings, optimiser=optimiser, max_gradient_norm=None, ema=None)


def _example(params: Params) -> Ivon:
    hessian = {name: 0.5 + value.square() for name, value in params.items()}
    return Ivon(params, hessian, ess=STEP**-2, weight_decay=1e-4, samples=SAMPLES)


METHODS = (IvonOptions,)
