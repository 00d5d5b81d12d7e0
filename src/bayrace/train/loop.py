"""The training loop: minimise a likelihood, validate, keep the best, survive anything.

A run is a pure function of its settings, data and model, whatever interrupts it: the order of the
batches depends on (seed, epoch) only, and everything else that matters is in last.ckpt. The one
exception is a limit on time, which stops, and with a cosine schedule anneals, by the clock.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from bayrace.core.outputs import Params
from bayrace.core.protocols import Likelihood
from bayrace.data.disk import DiskDataset
from bayrace.system.signals import stop_on_signals
from bayrace.train import checkpoint, cooldown, optim
from bayrace.train import state as states
from bayrace.train.callbacks import NOBODY, Callbacks
from bayrace.train.checkpoint import CheckpointError
from bayrace.train.diverged import TrainingDiverged, diverged
from bayrace.train.gradient import Gradient, Item, gradient, shared_gradient
from bayrace.train.judge import judge
from bayrace.train.schedule import learning_rate, progress
from bayrace.train.settings import Event, StepEvent, TrainSettings, ValidEvent
from bayrace.train.state import TrainState
from bayrace.train.task import Task
from bayrace.train.validate import Batches, valid_batches

__all__ = [
    "CheckpointError",
    "Event",
    "FitResult",
    "StepEvent",
    "TrainSettings",
    "TrainingDiverged",
    "ValidEvent",
    "fit",
    "stop_on_signals",
]

_log = logging.getLogger(__name__)
Reason = Literal["epochs", "time", "early_stopping", "cooldown", "interrupted"]


@dataclass(frozen=True)
class FitResult:
    """Where a run ended."""

    params: Params  # of the best validation, averaged; the current ones if there was none
    history: tuple[dict[str, Any], ...]  # the lines of history.jsonl
    reason: Reason
    metrics: dict[str, float]  # of the best validation; empty if there was none
    epoch: int  # of the best validation, from 1; 0 if there was none


def fit(
    task: Task,
    *,
    resume: bool = False,
    initial: Params | None = None,
    callbacks: Callbacks = NOBODY,
) -> FitResult:
    """Train a model, writing last.ckpt, best.ckpt and history.jsonl into the task's folder.

    Where the task's likelihood changes (by ==), the search for the best parameters starts anew.
    `initial` replaces the model's own initial parameters. `resume` continues the run in the folder.
    Where the settings' team has several processes, all of them call `fit`, and the first one
    writes.
    """
    run = _Run(task, callbacks)
    run.prepare(resume=resume, initial=initial)
    reason = run.loop()
    run.finish(reason)
    return run.result(reason)


class _Run:
    """One call of `fit`: its task, its state and its clock."""

    state: TrainState

    def __init__(self, task: Task, callbacks: Callbacks) -> None:
        self.task, self.callbacks = task, callbacks
        self.team = task.settings.team
        self.now, self.totals = 0.0, [0.0]  # seconds of the run and labels of a batch, as agreed
        self.identity = task.identity()
        self.started = self.saved = time.monotonic()
        self.first_step, self.first_elapsed = 0, 0.0  # of this part of the run
        self.lr, self.done = task.settings.optimiser.lr, 0.0  # rate and progress of the last step

    @cached_property
    def valid_batches(self) -> Batches:
        """The validation set, collated when first needed."""
        return valid_batches(self.task)

    def prepare(self, *, resume: bool, initial: Params | None) -> None:
        """Read last.ckpt, or start afresh and write the first one."""
        settings, folder = self.task.settings, self.task.folder
        last = folder / checkpoint.LAST
        if self.team.leads and not resume and last.exists():
            raise CheckpointError(
                f"{last} exists; resume that run, train in another folder, or delete this one"
            )
        params = initial or self.task.initial()
        if resume:
            self.state = states.load_state(folder, settings, params, self.identity)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.state = states.fresh(settings, params)
        self.team.same(self.state.tensors())
        counters = self.state.counters
        if self.team.leads:
            states.cut_history(folder, counters)
        self.first_step, self.first_elapsed = counters.step, counters.elapsed
        if not resume:
            self.save()

    def loop(self) -> Reason:
        """Epochs until something ends them."""
        counters, settings = self.state.counters, self.task.settings
        patience = math.inf if settings.early_stopping is None else settings.early_stopping
        while counters.stale < patience and not cooldown.over(settings, counters):
            if counters.epoch >= settings.max_epochs:
                return "epochs"
            ended = self.epoch()
            if ended:
                return ended
        return "early_stopping" if counters.stale >= patience else "cooldown"

    def epoch(self) -> Reason | None:
        """The rest of the current epoch, and its validation if one is due."""
        counters, settings = self.state.counters, self.task.settings
        likelihood = self.task.likelihood_at(counters.epoch)
        batches = self.batches()
        item = next(batches, None)
        while item is not None:
            ended = self.ended(item)
            if ended:
                return ended
            item = self.step(item, batches, likelihood)
            if item is not None and self.checkpoint_due():
                self.save()
        finished = counters.epoch + 1
        last = finished == settings.max_epochs or cooldown.over(settings, counters)
        valid = last or finished % settings.valid_every == 0
        self.record(valid=valid)
        counters.epoch, counters.batch, counters.totals = finished, 0, {}
        if self.team.leads:
            # before the checkpoint, so that no epoch is left out
            self.callbacks.after_epoch(finished, self.state.params)
        if valid or self.checkpoint_due():
            self.save()
        return None

    def ended(self, item: Item) -> Reason | None:
        """Why to end before this step: all processes of a team agree."""
        stop, budget, self.now = self.callbacks.stop(), self.budget(), self.elapsed()
        if not self.team.alone:
            clock = self.now if self.team.leads else 0.0  # of the first process
            stops, self.now, *self.totals = self.team.total([float(stop), clock, *item.counts()])
            stop = stops > 0
        late = budget is not None and self.now >= budget
        return "interrupted" if stop else "time" if late else None

    def batches(self) -> Iterator[Item]:
        """The batches of the current epoch that are still to do."""
        counters, task, team = self.state.counters, self.task, self.team
        order = task.order(counters.epoch)[counters.batch :]
        shares = (team.share(indices, task.train.costs(indices)) for indices in order)
        dtype, device = task.settings.torch_dtype, task.settings.device
        made = task.train.feed(shares, dtype=dtype, device=device)
        yield from (Item(indices, own) for indices, own in zip(order, made, strict=True))

    def step(self, item: Item, batches: Iterator[Item], likelihood: Likelihood) -> Item | None:
        """One optimiser step; returns the next batch, collated while a GPU would be busy."""
        task, state, counters = self.task, self.state, self.state.counters
        settings = task.settings
        trial, noise = optim.trial(
            settings.optimiser,
            state.params,
            state.optimiser,
            seed=settings.seed,
            step=counters.step,
        )
        loss, grads = self.gradient(trial, likelihood, item)
        limit = settings.max_gradient_norm
        norm = optim.global_norm(grads) if limit is None else optim.clip(grads, maximum=limit)
        upcoming = next(batches, None)
        values = torch.stack([loss.total, norm, *loss.parts.values()]).tolist()  # the one wait
        named = dict(zip(("loss", "gradient_norm", *loss.parts), values, strict=True))
        if not (math.isfinite(values[0]) and math.isfinite(values[1])):
            raise diverged(task, state, named, dataset=task.train, indices=item.indices, lr=self.lr)
        self.update(grads, noise)
        for name, value in named.items():
            counters.totals[name] = counters.totals.get(name, 0.0) + value
        self.callbacks.observer(self.step_event(named))
        return upcoming

    def gradient(self, trial: Params, likelihood: Likelihood, item: Item) -> Gradient:
        """Of the loss of the whole batch."""
        model, stress = self.task.model, self.task.settings.stress
        if self.team.alone:
            return gradient(model, trial, likelihood, item, stress=stress)
        return shared_gradient(
            model, trial, likelihood, item, stress=stress, team=self.team, totals=self.totals
        )

    def update(self, grads: tuple[torch.Tensor, ...], noise: Params | None) -> None:
        """Move the parameters and their average."""
        settings, state, counters = self.task.settings, self.state, self.state.counters
        done = progress(
            step=counters.step,
            total_steps=self.task.total_steps,
            elapsed=self.elapsed() if self.team.alone else self.now,
            max_time=self.budget(),
        )
        expected = counters.step / done if counters.step and done else float(self.task.total_steps)
        peak = optim.peak_rate(settings.optimiser, steps=expected)
        if cooldown.cooling(settings, counters):
            self.lr = cooldown.rate(settings, counters)
        else:
            self.lr = learning_rate(
                settings.schedule, state.schedule, peak=peak, step=counters.step, progress=done
            )
        self.done = done
        optim.step(
            settings.optimiser, state.params, grads, state.optimiser, lr=self.lr, noise=noise
        )
        if settings.ema is not None and state.average is not None:
            optim.update_average(
                state.average, state.params, decay=settings.ema, count=counters.step
            )
        counters.step += 1
        counters.batch += 1

    def record(self, *, valid: bool) -> None:
        """Add the epoch so far to the history, with a validation if asked."""
        task, state, counters = self.task, self.state, self.state.counters
        train = {name: total / max(counters.batch, 1) for name, total in counters.totals.items()}
        line: dict[str, Any] = {"epoch": state.trained_epoch() + 1, "step": counters.step}
        line |= {"learning_rate": self.lr, "train": train}
        if isinstance(task.train, DiskDataset):
            line["waited"] = round(task.train.waited, 3)
        if valid:
            elapsed = self.elapsed()
            event = judge(task, state, self.valid_batches, train=train, lr=self.lr, elapsed=elapsed)
            counters.valid_seconds = self.team.first(counters.valid_seconds)
            line |= {"valid": event.metrics, "improved": event.improved}
            self.callbacks.observer(event)
            self.judged(improved=event.improved)
        line["elapsed"] = round(self.elapsed(), 3)
        if self.team.leads:
            states.append_history(task.folder, line, counters)

    def judged(self, *, improved: bool) -> None:
        """Remember the best, or go back to it where it was long ago."""
        counters = self.state.counters
        if improved:
            cooldown.mark(counters, progress=self.done, rate=self.lr)
        elif cooldown.due(self.task.settings, counters, progress=self.done):
            self.team.wait()  # for what the first process writes
            _log.info(
                "no better since epoch %d: back to it, and down with the learning rate",
                counters.best_epoch,
            )
            cooldown.begin(self.task, self.state, progress=self.done)

    def elapsed(self) -> float:
        """Seconds of the run, earlier parts included."""
        return self.first_elapsed + time.monotonic() - self.started

    def budget(self) -> float | None:
        """Seconds for training: the limit less what the last validation will take."""
        limit = self.task.settings.max_time
        if limit is None:
            return None
        return limit - min(self.state.counters.valid_seconds, limit / 10)

    def checkpoint_due(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return time.monotonic() - self.saved >= self.task.settings.checkpoint_every

    def save(self) -> None:
        """Write last.ckpt, unless the parameters are broken; the first process alone."""
        if not self.team.leads:
            return
        size = float(optim.global_norm(self.state.params.values()))
        if not math.isfinite(size):
            values = {"norm_of_the_parameters": size}
            data = self.task.train
            raise diverged(self.task, self.state, values, dataset=data, indices=(), lr=self.lr)
        self.state.counters.elapsed = self.elapsed()
        states.save_last(self.task.folder, self.state, self.identity)
        self.saved = time.monotonic()

    def step_event(self, named: dict[str, float]) -> StepEvent:
        """Report of a step."""
        counters, settings, elapsed = self.state.counters, self.task.settings, self.elapsed()
        per_step = (elapsed - self.first_elapsed) / (counters.step - self.first_step)
        eta = per_step * (self.task.total_steps - counters.step)
        if settings.max_time is not None:
            eta = min(eta, max(settings.max_time - elapsed, 0.0))
        return StepEvent(
            epoch=counters.epoch + 1,
            max_epochs=settings.max_epochs,
            batch=counters.batch,
            steps_per_epoch=self.task.steps_per_epoch,
            step=counters.step,
            loss=named["loss"],
            parts={k: v for k, v in named.items() if k not in ("loss", "gradient_norm")},
            gradient_norm=named["gradient_norm"],
            learning_rate=self.lr,
            elapsed=elapsed,
            eta=eta,
        )

    def finish(self, reason: Reason) -> None:
        """Validate what has not been, unless the user is waiting, and save."""
        counters = self.state.counters
        if reason != "interrupted" and counters.validated != counters.step:
            self.record(valid=True)
        self.save()
        self.team.wait()  # the others read what the first has written

    def result(self, reason: Reason) -> FitResult:
        """The best parameters, read back from the disk."""
        history = states.read_history(self.task.folder)
        if self.state.counters.best is None:
            params = {name: value.detach().clone() for name, value in self.state.current.items()}
            return FitResult(params, history, reason, metrics={}, epoch=0)
        params, content = states.load_best(self.task.folder, device=self.task.settings.device)
        return FitResult(params, history, reason, content["metrics"], content["epoch"])
