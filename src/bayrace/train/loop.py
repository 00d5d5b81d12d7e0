"""The training loop: minimise a likelihood, validate, keep the best, survive anything.

A run is a pure function of its settings, data and model, whatever interrupts it: the order of the
batches depends on (seed, epoch) only, and everything else that matters is in last.ckpt. The one
exception is a limit on time, which stops, and with a cosine schedule anneals, by the clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Params
from bayrace.core.protocols import Likelihood, Model
from bayrace.data.dataset import Dataset
from bayrace.models.derivatives import evaluate
from bayrace.system.signals import stop_on_signals
from bayrace.train import checkpoint, optim
from bayrace.train import state as states
from bayrace.train.checkpoint import CheckpointError
from bayrace.train.diverged import TrainingDiverged, diverged
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

Reason = Literal["epochs", "time", "early_stopping", "interrupted"]


@dataclass(frozen=True)
class FitResult:
    """Where a run ended."""

    params: Params  # of the best validation, averaged; the current ones if there was none
    history: tuple[dict[str, Any], ...]  # the lines of history.jsonl
    reason: Reason
    metrics: dict[str, float]  # of the best validation; empty if there was none
    epoch: int  # of the best validation, from 1; 0 if there was none


def fit(
    model: Model,
    likelihood_at: Callable[[int], Likelihood],
    train: Dataset,
    valid: Dataset,
    *,
    settings: TrainSettings,
    folder: Path,
    resume: bool = False,
    observer: Callable[[Event], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    initial: Params | None = None,
    after_epoch: Callable[[int, Params], None] = lambda *_: None,
) -> FitResult:
    """Train `model`, writing last.ckpt, best.ckpt and history.jsonl into `folder`.

    `likelihood_at(epoch)`, epochs from 0, gives the loss; where it changes (by ==), the search for
    the best parameters starts anew. `initial` replaces the model's own initial parameters. `stop`
    is asked before each step; True ends the run, saved. `resume` continues the run in `folder`.
    `after_epoch(epoch, params)`, epochs from 1, sees the parameters themselves, not their average;
    a resumed run calls it again, with the same parameters, for epochs its checkpoint lacks.
    """
    task = Task(model, likelihood_at, train, valid, settings, Path(folder))
    run = _Run(task, observer=observer, stop=stop, after_epoch=after_epoch)
    run.prepare(resume=resume, initial=initial)
    reason = run.loop()
    run.finish(reason)
    return run.result(reason)


_Item = tuple[list[int], GraphBatch, Labels]


class _Run:
    """One call of `fit`: its task, its state and its clock."""

    state: TrainState

    def __init__(
        self,
        task: Task,
        *,
        observer: Callable[[Event], None],
        stop: Callable[[], bool],
        after_epoch: Callable[[int, Params], None],
    ) -> None:
        self.task, self.observer, self.stop, self.after_epoch = task, observer, stop, after_epoch
        self.identity = task.identity()
        self.started = self.saved = time.monotonic()
        self.first_step, self.first_elapsed = 0, 0.0  # of this part of the run
        self.lr = task.settings.optimiser.lr

    @cached_property
    def valid_batches(self) -> Batches:
        """The validation set, collated when first needed."""
        return valid_batches(self.task)

    def prepare(self, *, resume: bool, initial: Params | None) -> None:
        """Read last.ckpt, or start afresh and write the first one."""
        settings, folder = self.task.settings, self.task.folder
        last = folder / checkpoint.LAST
        if not resume and last.exists():
            raise CheckpointError(
                f"{last} exists; resume that run, train in another folder, or delete this one"
            )
        params = initial or self.task.initial()
        if resume:
            self.state = states.load_state(folder, settings, params, self.identity)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.state = states.fresh(settings, params)
        counters = self.state.counters
        states.cut_history(folder, counters)
        self.first_step, self.first_elapsed = counters.step, counters.elapsed
        if not resume:
            self.save()

    def loop(self) -> Reason:
        """Epochs until something ends them."""
        counters, settings = self.state.counters, self.task.settings
        patience = math.inf if settings.early_stopping is None else settings.early_stopping
        while counters.stale < patience:
            if counters.epoch >= settings.max_epochs:
                return "epochs"
            ended = self.epoch()
            if ended:
                return ended
        return "early_stopping"

    def epoch(self) -> Reason | None:
        """The rest of the current epoch, and its validation if one is due."""
        counters, settings = self.state.counters, self.task.settings
        likelihood = self.task.likelihood_at(counters.epoch)
        batches = self.batches()
        item = next(batches, None)
        while item is not None:
            if self.stop():
                return "interrupted"
            budget = self.budget()
            if budget is not None and self.elapsed() >= budget:
                return "time"
            item = self.step(item, batches, likelihood)
            if item is not None and self.checkpoint_due():
                self.save()
        finished = counters.epoch + 1
        valid = finished % settings.valid_every == 0 or finished == settings.max_epochs
        self.record(valid=valid)
        counters.epoch, counters.batch, counters.totals = finished, 0, {}
        self.after_epoch(finished, self.state.params)  # before the checkpoint: never left out
        if valid or self.checkpoint_due():
            self.save()
        return None

    def batches(self) -> Iterator[_Item]:
        """The batches of the current epoch that are still to do."""
        counters = self.state.counters
        order = self.task.order(counters.epoch)
        for indices in order[counters.batch :]:
            yield indices, *self.task.collate(self.task.train, indices)

    def step(self, item: _Item, batches: Iterator[_Item], likelihood: Likelihood) -> _Item | None:
        """One optimiser step; returns the next batch, collated while a GPU would be busy."""
        task, state, counters = self.task, self.state, self.state.counters
        indices, batch, labels = item
        settings = task.settings
        trial, noise = optim.trial(
            settings.optimiser,
            state.params,
            state.optimiser,
            seed=settings.seed,
            step=counters.step,
        )
        outputs = evaluate(task.model, trial, batch, stress=settings.stress)
        loss = likelihood.loss(outputs, labels, batch)
        grads = torch.autograd.grad(loss.total, tuple(trial.values()), materialize_grads=True)
        limit = settings.max_gradient_norm
        norm = optim.global_norm(grads) if limit is None else optim.clip(grads, maximum=limit)
        upcoming = next(batches, None)
        values = torch.stack([loss.total, norm, *loss.parts.values()]).tolist()  # the one wait
        named = dict(zip(("loss", "gradient_norm", *loss.parts), values, strict=True))
        if not (math.isfinite(values[0]) and math.isfinite(values[1])):
            raise diverged(task, state, named, dataset=task.train, indices=indices, lr=self.lr)
        self.update(grads, noise)
        for name, value in named.items():
            counters.totals[name] = counters.totals.get(name, 0.0) + value
        self.observer(self.step_event(named))
        return upcoming

    def update(self, grads: tuple[torch.Tensor, ...], noise: Params | None) -> None:
        """Move the parameters and their average."""
        settings, state, counters = self.task.settings, self.state, self.state.counters
        done = progress(
            step=counters.step,
            total_steps=self.task.total_steps,
            elapsed=self.elapsed(),
            max_time=self.budget(),
        )
        peak = settings.optimiser.lr
        self.lr = learning_rate(
            settings.schedule, state.schedule, peak=peak, step=counters.step, progress=done
        )
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
        if valid:
            elapsed = self.elapsed()
            event = judge(task, state, self.valid_batches, train=train, lr=self.lr, elapsed=elapsed)
            line |= {"valid": event.metrics, "improved": event.improved}
            self.observer(event)
        line["elapsed"] = round(self.elapsed(), 3)
        states.append_history(task.folder, line, counters)

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
        """Write last.ckpt, unless the parameters are broken."""
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

    def result(self, reason: Reason) -> FitResult:
        """The best parameters, read back from the disk."""
        history = states.read_history(self.task.folder)
        if self.state.counters.best is None:
            params = {name: value.detach().clone() for name, value in self.state.current.items()}
            return FitResult(params, history, reason, metrics={}, epoch=0)
        params, content = states.load_best(self.task.folder, device=self.task.settings.device)
        return FitResult(params, history, reason, content["metrics"], content["epoch"])
