"""What a training run is told, and what it tells its observers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import torch
from annotated_types import Ge

from bayrace.train.monitors import MONITORS
from bayrace.train.optim import Optimiser
from bayrace.train.schedule import Schedule
from bayrace.train.team import ALONE, Team

_FREE = frozenset({"max_epochs", "max_time", "checkpoint_every", "device", "team", "cooldown"})


@dataclass(frozen=True)
class Rehearsal:
    """Of the first `known` training frames an epoch has only `take`, drawn anew each time."""

    known: Annotated[int, Ge(0)]
    """Frames at the start of the training data that an epoch need not have."""
    take: Annotated[int, Ge(0)]
    """How many of the known frames an epoch has, drawn anew each time."""

    def __post_init__(self) -> None:
        if not 0 <= self.take <= self.known:
            raise ValueError(f"take={self.take}: give 0 to known={self.known} frames")


@dataclass(frozen=True)
class TrainSettings:
    """One training run. A resumed one may change lengths, checkpoint interval, device and team."""

    optimiser: Optimiser
    schedule: Schedule
    batch_size: int  # structures
    edge_budget: int | None  # mean edges of a training batch, which then replaces batch_size
    valid_batch_size: int  # structures
    max_epochs: int
    max_time: float | None  # seconds of the whole run, resumed parts included
    max_gradient_norm: float | None  # largest global norm of the gradient
    ema: float | None  # decay of the moving average of the parameters
    valid_every: int  # epochs
    early_stopping: int | None  # validations without improvement
    min_improvement: float  # relative change of the monitor that counts, for early stopping
    monitor: str  # one of MONITORS
    stress: bool  # whether stress is predicted and trained
    checkpoint_every: float  # seconds between checkpoints within an epoch
    seed: int  # of the initial parameters and the order of the batches
    dtype: str  # "float32" or "float64"
    device: str
    rehearsal: Rehearsal | None = None  # None: every epoch has all frames
    cooldown: bool = False  # go back to the best weights where validation improves no more
    team: Team = ALONE  # processes that share every batch

    def __post_init__(self) -> None:
        for name in ("batch_size", "valid_batch_size", "max_epochs", "valid_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("max_time", "max_gradient_norm", "early_stopping", "edge_budget"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value}: must be positive, or None for no limit")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise ValueError(f"ema={self.ema}: the decay must be in [0, 1), or None for no average")
        if self.monitor not in MONITORS:
            raise ValueError(f"monitor={self.monitor!r} is unknown; use one of {MONITORS}")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype={self.dtype!r}: use 'float32' or 'float64'")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of parameters and positions."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    def binding(self) -> dict[str, Any]:
        """The settings that a resumed run must share, JSON-able."""
        values = {name: value for name, value in asdict(self).items() if name not in _FREE}
        values["optimiser"] = _listed(values["optimiser"])
        values["schedule"]["name"] = type(self.schedule).__name__
        return values


def _listed(values: dict[str, Any]) -> dict[str, Any]:
    """The same with lists for tuples, as JSON returns them."""
    plain = {
        key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
    }
    return {k: _listed(value) if isinstance(value, dict) else value for k, value in plain.items()}


@dataclass(frozen=True)
class StepEvent:
    """After one optimiser step."""

    epoch: int  # the current one, from 1
    max_epochs: int
    batch: int  # finished batches of this epoch
    steps_per_epoch: int
    step: int  # finished steps of the run
    loss: float
    parts: dict[str, float] = field(hash=False)
    gradient_norm: float  # before clipping
    learning_rate: float
    elapsed: float  # seconds of the run, resumed parts included
    eta: float  # seconds, estimated


@dataclass(frozen=True)
class ValidEvent:
    """After one validation, with the averaged parameters if there are any."""

    epoch: int  # the one just trained, from 1
    step: int
    metrics: dict[str, float] = field(hash=False)  # see MONITORS, and `loss_<part>`
    train: dict[str, float] = field(hash=False)  # mean loss and parts over the epoch's steps
    monitor: float
    best: float  # of the monitor so far
    improved: bool
    learning_rate: float
    elapsed: float


Event = StepEvent | ValidEvent
