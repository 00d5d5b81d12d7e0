"""SWAG (Maddox 2019): a Gaussian from the tail of an optimiser's path.

Training goes on at a constant learning rate, and the weights after every few epochs are snapshots.
Their mean θ̄, the variance of each weight, and the deviations D of the last K snapshots from the
running mean of their time make the Gaussian

    θ = θ̄ + √½ Σ_diag^½ z₁ + D z₂ / √(2(K - 1)),   covariance ½ (Σ_diag + DDᵀ/(K - 1)).

`scaling="paper"` leaves the ½ out of the second term: covariance ½ Σ_diag + DDᵀ/(K - 1).

With `start` there is no tail: the snapshots are those of the training itself, from this fraction
of its epochs on, at whatever learning rate its schedule has there. That is the paper's way.

Either way noise heads are refitted at θ̄ and do not vary, and every sample has its energy shift
(`bayrace.posterior.finish`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le, Lt

from bayrace.core.outputs import Params
from bayrace.core.protocols import Posterior
from bayrace.posterior.example import SAMPLES, moved
from bayrace.posterior.finish import finished
from bayrace.posterior.gaussian.low_rank import Collector, Scaling, Swag
from bayrace.posterior.method import Example, FitTask, Fitted, PosteriorMethod, Recorder
from bayrace.posterior.stored import MOST_SAMPLES, Group, Layout
from bayrace.train import checkpoint
from bayrace.train.checkpoint import CheckpointError
from bayrace.train.ivon import IvonSettings
from bayrace.train.loop import FitResult
from bayrace.train.loop import fit as train_loop
from bayrace.train.optim import with_rate
from bayrace.train.schedule import Constant
from bayrace.train.settings import TrainSettings
from bayrace.train.task import Task

SNAPSHOTS = "snapshots"  # the folder of the snapshots, in that of the run


@dataclass(frozen=True)
class SwagOptions(PosteriorMethod):
    """Tail of the training: a Gaussian of the weights on its way."""

    name: ClassVar[str] = "swag"
    trains: ClassVar = "on"
    lr: Annotated[float, Gt(0)] = 0.001
    """Learning rate of the tail, the training that goes on at a constant rate."""
    epochs: Annotated[int, Ge(2)] = 40
    """Epochs of the tail, the training that goes on at a constant rate."""
    burn_in: Annotated[int, Ge(0)] = 5
    """Epochs of the tail before the first snapshot."""
    every: Annotated[int, Ge(1)] = 1
    """Epochs between snapshots."""
    rank: Annotated[int, Ge(2)] = 20
    """K, the last snapshots whose deviations make the low-rank part of the covariance."""
    scaling: Scaling = "maddox"
    """maddox: half the diagonal and half the low-rank part; paper: all of the latter."""
    samples: Annotated[int, Ge(1), Le(MOST_SAMPLES)] = 30
    """Weight samples of a prediction."""
    start: Annotated[float, Ge(0), Lt(1)] | None = None
    """Take snapshots of the training itself, from this fraction of its epochs on, as the paper
    does; lr, epochs and burn_in do not count then. null: of a tail."""

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

    def fit(self, task: FitTask) -> Fitted:
        """Train on in a tail; no posterior where it was interrupted."""
        resume = task.resume and (task.folder / checkpoint.LAST).is_file()
        return Fitted(*fit(replace(task, resume=resume), self))

    def recorder(self, folder: Path) -> Recorder | None:
        """Of the training itself, where `start` asks for that."""
        return None if self.start is None else SnapshotRecorder(folder, self)

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Swag:
        """The stored Gaussian."""
        return Swag.restore(tensors, options)

    @classmethod
    def layout(cls, posterior: Posterior) -> Layout:  # noqa: ARG003
        """Mean, variance and deviations."""
        return Layout((Group("mean/"), Group("variance/", least=0.0), Group("deviations/", 1)))

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Of a few steps away from the weights."""
        return {cls.name: lambda _, params: _example(params)}


def fit(task: FitTask, options: SwagOptions) -> tuple[Swag | None, FitResult]:
    """Train on from `task.params` (None: from scratch) in `task.folder`, and make the posterior.

    Of the settings, learning rate, schedule, epochs and limits are replaced by those of `options`.
    Snapshots are files in the folder's snapshots/, so that a killed and resumed run gives the same.
    The posterior is None if `stop` ended the run; resume it. `FitResult.params` are the weights of
    the best validation on the way, which the posterior does not use.
    """
    if options.start is not None:
        raise ValueError(
            f"swag: start={options.start} takes its snapshots from the training of the network "
            "itself; train with posterior: swag, or set posterior.swag.start=null for a tail"
        )
    where = task.folder / SNAPSHOTS
    if not task.resume and not (task.folder / checkpoint.LAST).exists():  # else the loop refuses
        _clear(where)

    def keep(epoch: int, params: Params) -> None:
        if epoch in options.snapshot_epochs():
            _keep(where, epoch, params)

    result = train_loop(
        Task(
            task.model,
            task.likelihood_at,
            task.train,
            task.valid,
            _constant(task.settings, options),
            task.folder,
        ),
        resume=task.resume,
        initial=task.params,
        callbacks=replace(task.callbacks, after_epoch=keep),
    )
    if result.reason == "interrupted":
        return None, result
    gaussian = _gaussian(where, options.snapshot_epochs(), options, task.settings)
    return finished(gaussian, task), result


class SnapshotRecorder:
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

    def fit(self, task: FitTask) -> Swag:
        """The Gaussian of the snapshots, with noise heads of its mean and shifts."""
        return finished(self.posterior(task.settings), task)

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


def _example(params: Params) -> Swag:
    collector = Collector.empty(SAMPLES)
    for seed in range(SAMPLES + 2):
        collector = collector.add(moved(params, seed))
    dtype = next(iter(params.values())).dtype
    return collector.posterior(scaling="maddox", samples=SAMPLES, dtype=dtype)


METHODS = (SwagOptions,)
