"""When training breaks: which frames did it, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bayrace.data.cache import Dataset
from bayrace.model.derivatives import evaluate
from bayrace.train.optim import global_norm
from bayrace.types import Likelihood, Model, Params

_SHOWN = 10


class TrainingDiverged(RuntimeError):  # noqa: N818  it says what happened
    """A loss, gradient or parameter that is not finite; no checkpoint was written after it."""

    def __init__(self, message: str, *, frames: tuple[str, ...], step: int, checkpoint: Path):
        super().__init__(message)
        self.frames = frames  # labels, as "file.xyz, frame 12"
        self.step = step
        self.checkpoint = checkpoint  # the last good one


def diverged(
    what: str,
    values: Mapping[str, float],
    *,
    frames: tuple[str, ...],
    alone: bool,
    epoch: int,
    step: int,
    lr: float,
    checkpoint: Path,
) -> TrainingDiverged:
    """The error for `what`, with the loss `values` and the labels of the frames it came from.

    `alone` says that each of the frames gives a non-finite value by itself.
    """
    numbers = ", ".join(f"{name} {value:g}" for name, value in values.items())
    named = "; ".join(frames[:_SHOWN])
    if len(frames) > _SHOWN:
        named += f"; and {len(frames) - _SHOWN} more"
    blame = "Frames that give it" if alone else "No frame gives it alone; it came with"
    blame = f"{blame}: {named}. " if frames else ""
    return TrainingDiverged(
        f"training diverged at epoch {epoch}, step {step}: {what} is not finite ({numbers}). "
        f"{blame}The last good checkpoint is kept at {checkpoint}. "
        f"Lower the learning rate (now {lr:g}), clip gradients (for example clip=10), "
        "or check these frames with `bayrace validate`",
        frames=frames,
        step=step,
        checkpoint=checkpoint,
    )


def offending_frames(
    model: Model,
    params: Params,
    likelihood: Likelihood,
    dataset: Dataset,
    indices: Sequence[int],
    *,
    stress: bool,
    dtype: torch.dtype,
    device: str,
) -> tuple[tuple[str, ...], bool]:
    """Labels of the frames whose output, loss or gradient is not finite by itself, and True.

    If there is none, the labels of all the frames and False.
    """
    leaves = {name: value.detach().requires_grad_(True) for name, value in params.items()}
    guilty = []
    for index in indices:
        batch, labels = dataset.batch([index], dtype=dtype, device=device)
        outputs = evaluate(model, leaves, batch, stress=stress)
        total = likelihood.loss(outputs, labels, batch).total
        numbers = [total.detach(), outputs.energy.sum().detach(), outputs.forces.sum().detach()]
        if total.requires_grad:
            grads = torch.autograd.grad(total, tuple(leaves.values()), materialize_grads=True)
            numbers.append(global_norm(grads))
        if not all(bool(torch.isfinite(number)) for number in numbers):
            guilty.append(index)
    chosen = guilty or list(indices)
    return tuple(dataset.frames[index].label for index in chosen), bool(guilty)
