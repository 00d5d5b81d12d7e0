"""What a validation decides: the best parameters, the learning rate, whether to go on."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from bayrace.train.cooldown import cooling
from bayrace.train.diverged import diverged
from bayrace.train.monitors import resolve
from bayrace.train.schedule import observe
from bayrace.train.settings import ValidEvent
from bayrace.train.state import TrainState, save_best
from bayrace.train.task import Task
from bayrace.train.validate import Batches, validate


def judge(
    task: Task,
    state: TrainState,
    batches: Batches,
    *,
    train: dict[str, float],
    lr: float,
    elapsed: float,
) -> ValidEvent:
    """Validate, write best.ckpt if this is the best, and tell the schedule and early stopping."""
    counters, begin = state.counters, time.monotonic()
    _start_anew_if_likelihood_changed(task, state)
    metrics = _measure(task, state, batches, lr=lr)
    value = metrics[resolve(task.settings.monitor, metrics)]
    last = cooling(task.settings, counters)  # whose weights count
    improved = last or counters.best is None or value < counters.best
    epoch = state.trained_epoch()
    if improved:
        counters.best, counters.best_epoch = value, epoch + 1
        if task.settings.team.leads:
            save_best(task.folder, state.current, metrics, counters)
    _count_patience(state, value, min_improvement=task.settings.min_improvement)
    state.schedule = observe(task.settings.schedule, state.schedule, value)
    counters.validated, counters.valid_epoch = counters.step, epoch
    counters.valid_seconds = time.monotonic() - begin
    return ValidEvent(
        epoch=epoch + 1,
        step=counters.step,
        metrics=metrics,
        train=train,
        monitor=value,
        best=value if counters.best is None else counters.best,
        improved=improved,
        learning_rate=lr,
        elapsed=elapsed + counters.valid_seconds,
    )


def _start_anew_if_likelihood_changed(task: Task, state: TrainState) -> None:
    """Forget the best: losses do not compare, and noise heads were not trained before."""
    counters = state.counters
    if counters.validated < 0:
        return
    if task.likelihood_at(state.trained_epoch()) != task.likelihood_at(counters.valid_epoch):
        counters.best, counters.reference, counters.stale = None, None, 0
        state.schedule = replace(state.schedule, best=None, stale=0)


def _measure(task: Task, state: TrainState, batches: Batches, *, lr: float) -> dict[str, float]:
    """Metrics of the current parameters, all finite."""
    likelihood = task.likelihood_at(state.trained_epoch())
    settings = task.settings
    metrics = validate(
        task.model,
        state.current,
        likelihood,
        batches,
        stress=settings.stress,
        team=settings.team,
    )
    if not all(math.isfinite(value) for value in metrics.values()):
        everything = range(len(task.valid))
        raise diverged(task, state, metrics, dataset=task.valid, indices=everything, lr=lr)
    return metrics


def _count_patience(state: TrainState, value: float, *, min_improvement: float) -> None:
    """Count validations without a sufficient improvement."""
    counters = state.counters
    reference = counters.reference
    if reference is None or value < reference - min_improvement * abs(reference):
        counters.reference, counters.stale = value, 0
    else:
        counters.stale += 1
