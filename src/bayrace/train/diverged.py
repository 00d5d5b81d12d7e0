"""When training breaks: which frames did it, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bayrace.core.outputs import Params
from bayrace.models.derivatives import evaluate
from bayrace.train import checkpoint
from bayrace.train.ivon import IvonSettings
from bayrace.train.optim import Optimiser, global_norm
from bayrace.train.state import TrainState
from bayrace.train.task import Task, TrainingSet

_SHOWN = 10


class TrainingDiverged(RuntimeError):  # noqa: N818  it says what happened
    """A loss, gradient or parameter that is not finite; no checkpoint was written after it."""

    def __init__(self, message: str, *, frames: tuple[str, ...], step: int, checkpoint: Path):
        super().__init__(message)
        self.frames = frames  # labels, as "file.xyz, frame 12"
        self.step = step
        self.checkpoint = checkpoint  # the last good one


def diverged(
    task: Task,
    state: TrainState,
    values: Mapping[str, float],
    *,
    dataset: TrainingSet,
    indices: Sequence[int],
    lr: float,
) -> TrainingDiverged:
    """The error for `values` of which some are not finite, met on these frames of `dataset`.

    It names the frames whose output, loss or gradient is not finite by itself, if there are any.
    """
    epoch, counters, valid = state.trained_epoch(), state.counters, dataset is task.valid
    guilty = _guilty(task, state.current if valid else state.params, epoch, dataset, indices)
    frames = tuple(dataset.origin(index) for index in guilty or indices)
    broken = next(name for name, value in values.items() if not math.isfinite(value))
    what = f"the {'validation ' if valid else ''}{broken.replace('_', ' ')}"
    numbers = ", ".join(f"{name} {value:g}" for name, value in values.items())
    path = task.folder / checkpoint.LAST
    return TrainingDiverged(
        f"training diverged at epoch {epoch + 1}, step {counters.step + (not valid)}: "
        f"{what} is not finite ({numbers}). {_blame(frames, alone=bool(guilty))}"
        f"The last good checkpoint is kept at {path}. "
        f"{_remedy(task.settings.optimiser, lr)}, "
        "or check these frames with `bayrace validate`",
        frames=frames,
        step=counters.step,
        checkpoint=path,
    )


def _remedy(optimiser: Optimiser, lr: float) -> str:
    slower = f"Lower the learning rate (now {lr:g})"
    if isinstance(optimiser, IvonSettings):
        start = f"ess={optimiser.ess:g} or hess_init={optimiser.hess_init:g}"
        return f"{slower}, raise {start} (the noise on the weights starts at 1/√(ess · hess_init))"
    return f"{slower}, clip gradients (for example max_gradient_norm=10)"


def _blame(frames: tuple[str, ...], *, alone: bool) -> str:
    if not frames:
        return ""
    named = "; ".join(frames[:_SHOWN])
    if len(frames) > _SHOWN:
        named += f"; and {len(frames) - _SHOWN} more"
    return (
        f"{'Frames that give it' if alone else 'No frame gives it alone; it came with'}: {named}. "
    )


def _guilty(
    task: Task, params: Params, epoch: int, dataset: TrainingSet, indices: Sequence[int]
) -> list[int]:
    leaves = {name: value.detach().requires_grad_(True) for name, value in params.items()}
    likelihood = task.likelihood_at(epoch)
    guilty = []
    for index in indices:
        batch, labels = task.collate(dataset, [index])
        outputs = evaluate(task.model, leaves, batch, stress=task.settings.stress)
        total = likelihood.loss(outputs, labels, batch).total
        numbers = [total.detach(), outputs.energy.sum().detach(), outputs.forces.sum().detach()]
        if total.requires_grad:
            grads = torch.autograd.grad(total, tuple(leaves.values()), materialize_grads=True)
            numbers.append(global_norm(grads))
        if not all(bool(torch.isfinite(number)) for number in numbers):
            guilty.append(index)
    return guilty
