"""The training loop: minimise a likelihood, validate, keep the best, survive anything.

A run is a pure function of its settings, data and model, whatever interrupts it: the order of the
batches depends on (seed, epoch) only, and everything else that matters is in last.ckpt. The one
exception is a limit on time, which stops, and with a cosine schedule anneals, by the clock.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from bayrace.data.cache import Dataset, epoch_batches
from bayrace.data.split import frame_fingerprint
from bayrace.model.derivatives import evaluate
from bayrace.train import checkpoint, optim
from bayrace.train.checkpoint import CheckpointError
from bayrace.train.diverged import TrainingDiverged, diverged, offending_frames
from bayrace.train.schedule import learning_rate, observe, progress
from bayrace.train.settings import Event, StepEvent, TrainSettings, ValidEvent
from bayrace.train.signals import stop_on_signals
from bayrace.train.state import (
    TrainState,
    append_history,
    cut_history,
    fresh,
    load_best,
    read_history,
    restore,
    save_best,
    save_last,
)
from bayrace.train.validate import Batches, valid_batches, validate
from bayrace.types import GraphBatch, Labels, Likelihood, Model, Params

__all__ = [
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
Item = tuple[list[int], GraphBatch, Labels]


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
) -> FitResult:
    """Train `model`, writing last.ckpt, best.ckpt and history.jsonl into `folder`.

    `likelihood_at(epoch)`, epochs from 0, gives the loss; where it changes, the search for the best
    parameters starts anew, as losses under different likelihoods do not compare. `initial` replaces
    the model's own initial parameters. `stop` is asked before each step; True ends the run, saved.
    """
    run = _Run(model, likelihood_at, train, valid, settings, Path(folder), observer, stop)
    run.prepare(resume=resume, initial=initial)
    reason = run.loop()
    run.finish(reason)
    return run.result(reason)


class _Run:
    """One call of `fit`: its arguments, its state and its clock."""

    def __init__(
        self,
        model: Model,
        likelihood_at: Callable[[int], Likelihood],
        train: Dataset,
        valid: Dataset,
        settings: TrainSettings,
        folder: Path,
        observer: Callable[[Event], None],
        stop: Callable[[], bool],
    ) -> None:
        for name, dataset in (("training", train), ("validation", valid)):
            if len(dataset) == 0:
                raise ValueError(f"the {name} set has no frames; give it at least one")
        self.model, self.likelihood_at, self.train, self.valid = model, likelihood_at, train, valid
        self.settings, self.folder, self.observer, self.stop = settings, folder, observer, stop
        self.steps_per_epoch = math.ceil(len(train) / settings.batch_size)
        self.identity = _identity(model, likelihood_at, train, valid, settings)
        self.valid_cache: Batches | None = None
        self.state: TrainState
        self.started = self.saved = time.monotonic()
        self.first_step, self.first_elapsed, self.lr = 0, 0.0, settings.optimiser.lr

    def prepare(self, *, resume: bool, initial: Params | None) -> None:
        """Read last.ckpt, or start afresh and write the first one."""
        settings, last = self.settings, self.folder / checkpoint.LAST
        if not resume and last.exists():
            raise CheckpointError(
                f"{last} exists; resume that run, or train in another folder (or delete this one)"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        params = initial or self.model.init(
            settings.seed, dtype=settings.torch_dtype, device=settings.device
        )
        if resume:
            self.state = restore(self.folder, settings, params, self.identity)
        else:
            self.state = fresh(settings, params)
        cut_history(self.folder, self.state.counters)
        counters = self.state.counters
        self.first_step, self.first_elapsed = counters.step, counters.elapsed
        if not resume:
            self.save()

    def loop(self) -> Reason:
        """Epochs until something ends them."""
        counters = self.state.counters
        while counters.epoch < self.settings.max_epochs:
            if self.out_of_patience():
                return "early_stopping"
            ended = self.epoch()
            if ended:
                return ended
        return "early_stopping" if self.out_of_patience() else "epochs"

    def epoch(self) -> Reason | None:
        """The rest of the current epoch, and its validation if one is due."""
        counters, settings = self.state.counters, self.settings
        likelihood = self.likelihood_at(counters.epoch)
        batches = self.batches()
        item = next(batches, None)
        while item is not None:
            if self.stop():
                return "interrupted"
            if self.out_of_time():
                return "time"
            item = self.step(item, batches, likelihood)
            if time.monotonic() - self.saved >= settings.checkpoint_every and item is not None:
                self.save()
        due = (counters.epoch + 1) % settings.valid_every == 0
        self.close_epoch(valid=due or counters.epoch + 1 == settings.max_epochs)
        return None

    def batches(self) -> Iterator[Item]:
        """The batches of the current epoch that are still to do."""
        counters, settings = self.state.counters, self.settings
        order = epoch_batches(
            len(self.train),
            settings.batch_size,
            seed=settings.seed,
            epoch=counters.epoch,
            shuffle=True,
        )
        for indices in order[counters.batch :]:
            yield (
                indices,
                *self.train.batch(indices, dtype=settings.torch_dtype, device=settings.device),
            )

    def step(self, item: Item, batches: Iterator[Item], likelihood: Likelihood) -> Item | None:
        """One optimiser step; returns the next batch, collated while a GPU would be busy."""
        settings, state, counters = self.settings, self.state, self.state.counters
        indices, batch, labels = item
        outputs = evaluate(self.model, state.params, batch, stress=settings.stress)
        loss = likelihood.loss(outputs, labels, batch)
        leaves = tuple(state.params.values())
        grads = torch.autograd.grad(loss.total, leaves, materialize_grads=True)
        norm = (
            optim.global_norm(grads)
            if settings.clip is None
            else optim.clip(grads, maximum=settings.clip)
        )
        upcoming = next(batches, None)
        values = torch.stack([loss.total, norm, *loss.parts.values()]).detach().tolist()
        named = dict(zip(("loss", "gradient_norm", *loss.parts), values, strict=True))
        if not (math.isfinite(values[0]) and math.isfinite(values[1])):
            raise self.failure(named, indices, likelihood)
        self.lr = self.rate()
        optim.step(settings.optimiser, state.params, grads, state.optimiser, lr=self.lr)
        if settings.ema is not None and state.average is not None:
            optim.update_average(
                state.average, state.params, decay=settings.ema, count=counters.step
            )
        counters.step += 1
        counters.batch += 1
        for name, value in named.items():
            counters.totals[name] = counters.totals.get(name, 0.0) + value
        self.tell_step(named)
        return upcoming

    def rate(self) -> float:
        """The learning rate of the next step."""
        settings, counters = self.settings, self.state.counters
        done = progress(
            step=counters.step,
            total_steps=self.steps_per_epoch * settings.max_epochs,
            elapsed=self.elapsed(),
            max_time=self.budget(),
        )
        return learning_rate(
            settings.schedule,
            self.state.schedule,
            peak=settings.optimiser.lr,
            step=counters.step,
            progress=done,
        )

    def close_epoch(self, *, valid: bool) -> None:
        """Write the epoch's line, validated if due, and a checkpoint."""
        counters = self.state.counters
        self.record(valid=valid)
        counters.epoch, counters.batch, counters.totals = counters.epoch + 1, 0, {}
        if valid or time.monotonic() - self.saved >= self.settings.checkpoint_every:
            self.save()

    def record(self, *, valid: bool) -> None:
        """Add the epoch so far to the history, with a validation if asked."""
        counters = self.state.counters
        train = {k: v / max(counters.batch, 1) for k, v in counters.totals.items()}
        line: dict[str, Any] = {"epoch": self.trained_epoch() + 1, "step": counters.step}
        line |= {"learning_rate": self.lr, "train": train}
        if valid:
            event = self.validation(train)
            line |= {"valid": event.metrics, "improved": event.improved}
            self.observer(event)
        line["elapsed"] = round(self.elapsed(), 3)
        append_history(self.folder, line, counters)

    def validation(self, train: dict[str, float]) -> ValidEvent:
        """Validate, keep the parameters if they are the best, and inform the schedule."""
        state, counters, settings = self.state, self.state.counters, self.settings
        begin = time.monotonic()
        epoch = self.trained_epoch()
        likelihood = self.likelihood_at(epoch)
        if counters.validated >= 0 and likelihood != self.likelihood_at(counters.valid_epoch):
            counters.best, counters.reference, counters.stale = None, None, 0
            state.schedule = replace(state.schedule, best=None, stale=0)
        metrics = self.measure(likelihood)
        value = metrics[settings.monitor]
        improved = counters.best is None or value < counters.best
        if improved:
            counters.best, counters.best_epoch = value, epoch + 1
            save_best(self.folder, state.current, metrics, counters)
        self.update_patience(value)
        state.schedule = observe(settings.schedule, state.schedule, value)
        counters.validated, counters.valid_epoch = counters.step, epoch
        counters.valid_seconds = time.monotonic() - begin
        assert counters.best is not None
        return ValidEvent(
            epoch=epoch + 1,
            step=counters.step,
            metrics=metrics,
            train=train,
            monitor=value,
            best=counters.best,
            improved=improved,
            learning_rate=self.lr,
            elapsed=self.elapsed(),
        )

    def measure(self, likelihood: Likelihood) -> dict[str, float]:
        """Metrics of the current parameters; an error if the monitored one has no value."""
        settings = self.settings
        if self.valid_cache is None:
            self.valid_cache = valid_batches(
                self.valid,
                batch_size=settings.valid_batch_size,
                dtype=settings.torch_dtype,
                device=settings.device,
            )
        metrics = validate(
            self.model, self.state.current, likelihood, self.valid_cache, stress=settings.stress
        )
        if settings.monitor not in metrics:
            raise ValueError(
                f"monitor={settings.monitor!r}: no validation frame has such a label; "
                f"monitor one of {', '.join(sorted(metrics))}"
            )
        if not all(math.isfinite(value) for value in metrics.values()):
            raise self.failure(metrics, list(range(len(self.valid))), likelihood, valid=True)
        return metrics

    def update_patience(self, value: float) -> None:
        """Count validations without a sufficient improvement."""
        counters, settings = self.state.counters, self.settings
        reference = counters.reference
        if reference is None or value < reference - settings.improvement * abs(reference):
            counters.reference, counters.stale = value, 0
        else:
            counters.stale += 1

    def trained_epoch(self) -> int:
        """The epoch of the last step, from 0."""
        counters = self.state.counters
        return counters.epoch if counters.batch else max(counters.epoch - 1, 0)

    def elapsed(self) -> float:
        """Seconds of the run, earlier parts included."""
        return self.first_elapsed + time.monotonic() - self.started

    def budget(self) -> float | None:
        """Seconds for training: the limit less what the last validation will take."""
        limit = self.settings.max_time
        if limit is None:
            return None
        return limit - min(self.state.counters.valid_seconds, limit / 10)

    def out_of_time(self) -> bool:
        """Whether the time for training is used up."""
        budget = self.budget()
        return budget is not None and self.elapsed() >= budget

    def out_of_patience(self) -> bool:
        """Whether early stopping is due."""
        limit = self.settings.early_stopping
        return limit is not None and self.state.counters.stale >= limit

    def save(self) -> None:
        """Write last.ckpt, unless the parameters are broken."""
        size = float(optim.global_norm(self.state.params.values()))
        if not math.isfinite(size):
            raise self.failure({"parameter_norm": size}, [], self.likelihood_at(0))
        self.state.counters.elapsed = self.elapsed()
        save_last(self.folder, self.state, self.identity)
        self.saved = time.monotonic()

    def failure(
        self,
        values: dict[str, float],
        indices: list[int],
        likelihood: Likelihood,
        *,
        valid: bool = False,
    ) -> TrainingDiverged:
        """The error that names the frames behind non-finite `values`."""
        settings, counters = self.settings, self.state.counters
        frames, alone = offending_frames(
            self.model,
            self.state.current if valid else self.state.params,
            likelihood,
            self.valid if valid else self.train,
            indices,
            stress=settings.stress,
            dtype=settings.torch_dtype,
            device=settings.device,
        )
        broken = [name for name, value in values.items() if not math.isfinite(value)]
        return diverged(
            f"the {'validation ' if valid else ''}{broken[0].replace('_', ' ')}",
            values,
            frames=frames,
            alone=alone,
            epoch=self.trained_epoch() + 1,
            step=counters.step,
            lr=self.lr,
            checkpoint=self.folder / checkpoint.LAST,
        )

    def tell_step(self, named: dict[str, float]) -> None:
        """Report a step."""
        counters, settings, elapsed = self.state.counters, self.settings, self.elapsed()
        per_step = (elapsed - self.first_elapsed) / max(counters.step - self.first_step, 1)
        eta = per_step * (self.steps_per_epoch * settings.max_epochs - counters.step)
        if settings.max_time is not None:
            eta = min(eta, max(settings.max_time - elapsed, 0.0))
        event = StepEvent(
            epoch=counters.epoch + 1,
            max_epochs=settings.max_epochs,
            batch=counters.batch,
            steps_per_epoch=self.steps_per_epoch,
            step=counters.step,
            loss=named["loss"],
            parts={k: v for k, v in named.items() if k not in ("loss", "gradient_norm")},
            gradient_norm=named["gradient_norm"],
            learning_rate=self.lr,
            elapsed=elapsed,
            eta=eta,
        )
        self.observer(event)

    def finish(self, reason: Reason) -> None:
        """Validate what has not been, unless the user is waiting, and save."""
        counters = self.state.counters
        if reason != "interrupted" and counters.validated != counters.step:
            self.record(valid=True)
        self.save()

    def result(self, reason: Reason) -> FitResult:
        """The best parameters, read back from the disk."""
        history = read_history(self.folder)
        if self.state.counters.best is None:
            params = {name: value.detach().clone() for name, value in self.state.current.items()}
            return FitResult(params, history, reason, metrics={}, epoch=0)
        params, content = load_best(self.folder, device=self.settings.device)
        return FitResult(params, history, reason, content["metrics"], content["epoch"])


def _identity(
    model: Model,
    likelihood_at: Callable[[int], Likelihood],
    train: Dataset,
    valid: Dataset,
    settings: TrainSettings,
) -> dict[str, Any]:
    """What a resumed run must share with its beginning, JSON-able."""
    described = {"model": getattr(model, "spec", model), "likelihood": likelihood_at(0)}
    return {
        "settings": settings.binding(),
        "train_data": _data_identity(train),
        "valid_data": _data_identity(valid),
        **{key: repr(v) for key, v in described.items() if dataclasses.is_dataclass(v)},
    }


def _data_identity(dataset: Dataset) -> dict[str, Any]:
    """Frames, in their order, and what was made of them."""
    frames = hashlib.sha256()
    for frame in dataset.frames:
        frames.update(f"{frame_fingerprint(frame)} {frame.weight};".encode())
    return {
        "frames": frames.hexdigest(),
        "elements": list(dataset.elements),
        "cutoff": dataset.cutoff,
        "references": {str(number): value for number, value in dataset.references.items()},
    }
