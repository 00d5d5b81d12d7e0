"""SWAG (Maddox 2019): a Gaussian from the tail of an optimiser's path.

Training goes on at a constant learning rate, and the weights after every few epochs are snapshots.
Their mean θ̄, the variance of each weight, and the deviations D of the last K snapshots from the
running mean of their time make the Gaussian

    θ = θ̄ + √½ Σ_diag^½ z₁ + D z₂ / √(2(K - 1)),   covariance ½ (Σ_diag + DDᵀ/(K - 1)).

`scaling="paper"` leaves the ½ out of the second term: covariance ½ Σ_diag + DDᵀ/(K - 1).

With `start` there is no tail: the snapshots are those of the training itself, from this fraction
of its epochs on, at whatever learning rate its schedule has there. That is the paper's way.

Either way noise heads are refitted at θ̄ and do not vary, and every sample has its energy shift
(`bayrace.posterior.settle`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.core.protocols import Likelihood
from bayrace.data.dataset import Dataset
from bayrace.posterior.settle import Settling, settle
from bayrace.posterior.shifts import Shifts
from bayrace.train import checkpoint
from bayrace.train.checkpoint import CheckpointError
from bayrace.train.ivon import IvonSettings
from bayrace.train.loop import Event, FitResult
from bayrace.train.loop import fit as train_loop
from bayrace.train.normal import generator, normal_like
from bayrace.train.optim import with_rate
from bayrace.train.refit import HeadedModel
from bayrace.train.schedule import Constant
from bayrace.train.settings import TrainSettings

Scaling = Literal["maddox", "paper"]
SNAPSHOTS = "snapshots"  # the folder of the snapshots, in that of the run


@dataclass(frozen=True)
class SwagOptions:
    """How the snapshots are made and used."""

    lr: float  # constant
    epochs: int  # of training beyond the given weights
    burn_in: int  # of these epochs, before the first snapshot may be taken
    every: int  # epochs between snapshots
    rank: int  # K, snapshots that make the low-rank part
    scaling: Scaling
    samples: int  # weight samples of a prediction
    start: float | None = None  # fraction of the training itself that comes before the snapshots

    def __post_init__(self) -> None:
        if self.start is not None and not 0 <= self.start < 1:
            raise ValueError(f"swag: start={self.start}: give a fraction from 0 up to 1, as 0.75")
        if self.every < 1 or self.burn_in < 0:
            raise ValueError(
                f"swag: every={self.every}, burn_in={self.burn_in}: "
                "every counts epochs from 1 up, burn_in from 0"
            )
        if self.start is None and len(self.snapshot_epochs()) < 2:
            raise ValueError(
                f"swag: epochs={self.epochs} with burn_in={self.burn_in} and every={self.every} "
                f"give {len(self.snapshot_epochs())} snapshots; a variance needs at least 2"
            )
        if self.rank < 2 or self.samples < 1:
            raise ValueError(
                f"swag: rank={self.rank}, samples={self.samples}: the low-rank part needs at "
                "least 2 snapshots, for example 20, and a prediction 1 sample, for example 30"
            )

    def snapshot_epochs(self) -> range:
        """Epochs of the tail, from 1, after which the weights are kept."""
        return range(self.burn_in + self.every, self.epochs + 1, self.every)

    def late_epochs(self, trained: int) -> range:
        """Epochs of a training of so many, from 1, whose weights are kept; `start` is given."""
        assert self.start is not None
        first = math.floor(self.start * trained / self.every) + 1
        return range(first * self.every, trained + 1, self.every)


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
        bare = replace(self, energy_shifts=None)
        tensors = {k: v.to(device=device, dtype=dtype) for k, v in bare.tensors().items()}
        moved = self.restore(tensors, self.options())
        return moved.shifted(self.energy_shifts and self.energy_shifts.to(device))


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


def fit(
    model: HeadedModel,
    likelihood_at: Callable[[int], Likelihood],
    train: Dataset,
    valid: Dataset,
    *,
    settings: TrainSettings,
    folder: Path,
    options: SwagOptions,
    refit_epochs: int,
    initial: Params | None,
    resume: bool = False,
    observer: Callable[[Event], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Swag | None, FitResult]:
    """Train on from `initial` (None: from scratch) in `folder`, and make the posterior.

    Of `settings`, learning rate, schedule, epochs and limits are replaced by those of `options`.
    Snapshots are files in `folder`/snapshots, so that a killed and resumed run gives the same. The
    posterior is None if `stop` ended the run; resume it. `FitResult.params` are the weights of the
    best validation on the way, which the posterior does not use. `progress` hears of structures
    done when energy shifts are fitted.
    """
    if options.start is not None:
        raise ValueError(
            f"swag: start={options.start} takes its snapshots from the training of the network "
            "itself; train with posterior: swag, or set posterior.swag.start=null for a tail"
        )
    where = Path(folder) / SNAPSHOTS
    if not resume and not (Path(folder) / checkpoint.LAST).exists():  # else the loop refuses
        _clear(where)

    def keep(epoch: int, params: Params) -> None:
        if epoch in options.snapshot_epochs():
            _keep(where, epoch, params)

    result = train_loop(
        model,
        likelihood_at,
        train,
        valid,
        settings=_constant(settings, options),
        folder=folder,
        resume=resume,
        observer=observer,
        stop=stop,
        initial=initial,
        after_epoch=keep,
    )
    if result.reason == "interrupted":
        return None, result
    gaussian = _gaussian(where, options.snapshot_epochs(), options, settings)
    how = Settling(refit_epochs, settings, stop, progress)
    last = likelihood_at(settings.max_epochs)
    return settle(gaussian, model, last, train, valid, how), result


class Recorder:
    """Snapshots of a training that goes on: what its `after_epoch` calls.

    How many epochs it will have is not known before its end (limits of time, early stopping), so
    the last 1 - `start` of those so far are kept.
    """

    def __init__(self, folder: Path, options: SwagOptions) -> None:
        self.where, self.options = Path(folder) / SNAPSHOTS, options

    def __call__(self, epoch: int, params: Params) -> None:
        """Keep the weights of this epoch, from 1, and forget those that are too old by now."""
        if epoch % self.options.every:
            return
        _keep(self.where, epoch, params)
        oldest = self.options.late_epochs(epoch).start
        for path in self.where.glob("*.ckpt"):
            if int(path.stem) < oldest:
                path.unlink()

    def posterior(self, settings: TrainSettings) -> Swag:
        """The Gaussian of the snapshots; noise heads and shifts are as training left them."""
        epochs = [int(path.stem) for path in self.where.glob("*.ckpt")]
        chosen = self.options.late_epochs(max(epochs, default=0))
        if len(chosen) < 2:
            raise ValueError(
                f"swag: start={self.options.start} and every={self.options.every} give "
                f"{len(chosen)} snapshots of this training; a variance needs at least 2: start "
                "earlier, or train for more epochs"
            )
        return _gaussian(self.where, chosen, self.options, settings)


def _constant(settings: TrainSettings, options: SwagOptions) -> TrainSettings:
    """The settings of the tail: no schedule, no average, and it ends after its epochs."""
    if isinstance(settings.optimiser, IvonSettings):
        raise ValueError(
            f"swag: optimiser {settings.optimiser.name!r} has a posterior of its own; "
            "use muon, soap, amsgrad or adamw"
        )
    return replace(
        settings,
        optimiser=with_rate(settings.optimiser, options.lr),
        schedule=Constant(),
        max_epochs=options.epochs,
        max_time=None,
        early_stopping=None,
        ema=None,
    )


def _gaussian(where: Path, epochs: range, options: SwagOptions, settings: TrainSettings) -> Swag:
    collector = Collector.empty(options.rank)
    for epoch in epochs:
        path = _file(where, epoch)
        if not path.is_file():
            raise CheckpointError(
                f"{path}: the snapshot of epoch {epoch} is missing; resume with the options of the "
                f"run (now every={options.every}, burn_in={options.burn_in}), or start it again"
            )
        collector = collector.add(checkpoint.load(path)[0])
    made = collector.posterior(
        scaling=options.scaling, samples=options.samples, dtype=settings.torch_dtype
    )
    return made.to(device=settings.device)


def _keep(where: Path, epoch: int, params: Params) -> None:
    where.mkdir(parents=True, exist_ok=True)
    checkpoint.save(_file(where, epoch), params, {"epoch": epoch})


def _file(where: Path, epoch: int) -> Path:
    return where / f"{epoch:06d}.ckpt"


def _clear(where: Path) -> None:
    """Remove the snapshots of an earlier run, and nothing else."""
    for path in where.glob("*.ckpt"):
        path.unlink()
