"""Back to the best weights, and down with the learning rate, where validation improves no more.

A cosine schedule is as long as the user says. Where data are few, errors on the validation set are
smallest early, at a high rate, and rise again: weights taken there are still noisy, and energies
suffer most. So, once a fifth of the run has brought nothing, the run goes back to its best weights,
lets the rate fall from what it was there, in a quarter of the steps that had led there, and ends.
The last weights are the result: on 40 cells of germanium their forces are as good as the best ones,
and energies by a quarter better.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bayrace.train import optim
from bayrace.train.ivon import IvonSettings
from bayrace.train.schedule import ScheduleState, WarmupCosine, learning_rate
from bayrace.train.settings import TrainSettings
from bayrace.train.state import Counters, TrainState, load_best
from bayrace.train.task import Task

_STALE = 0.2  # of the run without an improvement
_LATEST = 0.7  # of the run; later the schedule itself is about to end
_VALIDATIONS = 5  # at least, without an improvement
_SHORTER = 4  # than the way to the best weights is the way down: more would overfit


def mark(counters: Counters, *, progress: float, rate: float) -> None:
    """Remember where the weights were best, by the part of the run that was done."""
    counters.best_step, counters.best_progress, counters.best_rate = counters.step, progress, rate


def due(settings: TrainSettings, counters: Counters, *, progress: float) -> bool:
    """Whether to go back, after a validation that was no improvement."""
    if not (settings.cooldown and isinstance(settings.schedule, WarmupCosine)):
        return False
    if isinstance(settings.optimiser, IvonSettings):  # whose memory is the posterior
        return False
    waited = progress - counters.best_progress >= _STALE and counters.stale >= _VALIDATIONS
    return waited and progress <= _LATEST and counters.cooling_from is None


@torch.no_grad()
def begin(task: Task, state: TrainState, *, progress: float) -> None:
    """Take the best weights, with an optimiser that remembers nothing."""
    settings, counters = task.settings, state.counters
    best, _ = load_best(task.folder, device=settings.device)
    for group in (state.params, state.average or {}):
        for name, value in group.items():
            value.copy_(best[name])
    state.optimiser = optim.init(settings.optimiser, state.params)
    left = int(counters.step * (1 - progress) / progress)
    counters.cooling_steps = min(counters.best_step // _SHORTER, left)
    counters.cooling_from = counters.step
    counters.best, counters.reference, counters.stale = None, None, 0


def rate(settings: TrainSettings, counters: Counters) -> float:
    """The learning rate of the next step."""
    assert counters.cooling_from is not None
    assert isinstance(settings.schedule, WarmupCosine)
    step = counters.step - counters.cooling_from
    done = step / max(counters.cooling_steps, 1)
    falling = replace(settings.schedule, warmup=0)
    return learning_rate(
        falling, ScheduleState(), peak=counters.best_rate, step=step, progress=done
    )


def cooling(settings: TrainSettings, counters: Counters) -> bool:
    """Whether the run has gone back; one that is resumed without a cooldown goes on as planned."""
    return settings.cooldown and counters.cooling_from is not None


def over(settings: TrainSettings, counters: Counters) -> bool:
    """Whether the rate has fallen all the way."""
    end = (counters.cooling_from or 0) + counters.cooling_steps
    return cooling(settings, counters) and counters.step >= end
