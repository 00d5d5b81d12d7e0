"""Everything a run must remember to continue bit for bit, and its way to and from a checkpoint."""

from __future__ import annotations

import json
import logging
import math
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.train import checkpoint, optim
from bayrace.train.checkpoint import CheckpointError
from bayrace.train.optim import OptimiserState
from bayrace.train.schedule import ScheduleState
from bayrace.train.settings import TrainSettings

_log = logging.getLogger(__name__)
HISTORY = "history.jsonl"
_TAIL = 2**14  # bytes that hold the last line of a history


@dataclass
class Counters:
    """The numbers of a run."""

    epoch: int = 0  # finished epochs
    batch: int = 0  # finished batches of the current epoch
    step: int = 0  # finished optimiser steps
    elapsed: float = 0.0  # seconds, over all parts of the run
    totals: dict[str, float] = field(default_factory=dict)  # sums over this epoch's steps
    best: float | None = None  # of the monitor
    best_epoch: int = 0  # finished epochs, the current one included
    best_step: int = 0  # finished steps then
    best_progress: float = 0.0  # part of the run that was done then
    best_rate: float = 0.0  # learning rate then
    cooling_from: int | None = None  # step at which the run went back, see `cooldown`
    cooling_steps: int = 0  # from there to its end
    reference: float | None = None  # of the monitor, for early stopping
    stale: int = 0  # validations since the reference
    validated: int = -1  # step of the last validation
    valid_epoch: int = 0  # epoch of the last validation, from 0, names its likelihood
    valid_seconds: float = 0.0  # what the last validation took
    history_bytes: int = 0  # length of history.jsonl


@dataclass
class TrainState:
    """Tensors and numbers of a run; the loop changes them in place."""

    params: Params  # leaves that require gradients
    average: Params | None  # moving average, if there is one
    optimiser: OptimiserState
    schedule: ScheduleState
    counters: Counters

    @property
    def current(self) -> Params:
        """The parameters to validate with: the average if there is one."""
        return self.params if self.average is None else self.average

    def tensors(self) -> list[Tensor]:
        """All that move."""
        average = self.average or {}
        return [*self.params.values(), *average.values(), *self.optimiser.values()]

    def trained_epoch(self) -> int:
        """The epoch of the last step, from 0."""
        counters = self.counters
        return counters.epoch if counters.batch else max(counters.epoch - 1, 0)


def fresh(settings: TrainSettings, params: Params) -> TrainState:
    """The state of a run before its first step."""
    leaves = _leaves(params, settings)
    average = _copies(leaves) if settings.ema is not None else None
    optimiser = optim.init(settings.optimiser, leaves)
    return TrainState(leaves, average, optimiser, ScheduleState(), Counters())


def save_last(folder: Path, state: TrainState, identity: dict[str, Any]) -> None:
    """Write last.ckpt, after the history it points into has reached the disk."""
    with (folder / HISTORY).open("ab") as file:
        os.fsync(file.fileno())
    groups = {"params": state.params, "average": state.average or {}, "optimiser": state.optimiser}
    content = {
        "identity": identity,
        "schedule": asdict(state.schedule),
        "counters": asdict(state.counters),
    }
    checkpoint.save(folder / checkpoint.LAST, checkpoint.flatten(groups), content)


def save_best(folder: Path, params: Params, metrics: dict[str, float], counters: Counters) -> None:
    """Write best.ckpt, which holds parameters under their own names."""
    content = {"metrics": metrics, "step": counters.step, "epoch": counters.best_epoch}
    checkpoint.save(folder / checkpoint.BEST, params, content)


def load_best(folder: Path, *, device: str) -> tuple[Params, dict[str, Any]]:
    """Parameters of the best validation, and its `metrics`, `step` and `epoch`."""
    tensors, content = checkpoint.load(folder / checkpoint.BEST)
    return {name: value.to(device) for name, value in tensors.items()}, content


def load_last(folder: Path) -> tuple[Params, OptimiserState]:
    """Parameters (not their average) and optimiser of last.ckpt, on the CPU."""
    tensors, _ = checkpoint.load(folder / checkpoint.LAST)
    return checkpoint.group(tensors, "params"), checkpoint.group(tensors, "optimiser")


def load_state(
    folder: Path, settings: TrainSettings, params: Params, identity: dict[str, Any]
) -> TrainState:
    """The state in last.ckpt, if it belongs to a run of the same `identity` and parameters.

    `params` are the model's own, for their names, order and shapes.
    """
    path = folder / checkpoint.LAST
    tensors, content = checkpoint.load(path)
    _refuse_other_run(path, content["identity"], identity)
    state = fresh(settings, params)
    _fill(path, tensors, "params", state.params)
    _fill(path, tensors, "optimiser", state.optimiser)
    if state.average is not None:
        _fill(path, tensors, "average", state.average)
    state.schedule = ScheduleState(**content["schedule"])
    known = {item.name for item in fields(Counters)}
    state.counters = Counters(**{k: v for k, v in content["counters"].items() if k in known})
    return state


def append_history(folder: Path, record: dict[str, Any], counters: Counters) -> None:
    """Add one line to history.jsonl and move the cursor."""
    line = json.dumps(_finite(record)).encode() + b"\n"
    with (folder / HISTORY).open("ab") as file:
        file.write(line)
        counters.history_bytes = file.tell()


def cut_history(folder: Path, counters: Counters) -> None:
    """Drop the lines that were written after the checkpoint."""
    path = folder / HISTORY
    path.touch()
    size = path.stat().st_size
    if size < counters.history_bytes:
        _log.warning("%s is shorter than the checkpoint says; earlier lines are lost", path)
    os.truncate(path, min(size, counters.history_bytes))
    counters.history_bytes = path.stat().st_size


def read_history(folder: Path) -> tuple[dict[str, Any], ...]:
    """The lines of history.jsonl."""
    lines = (folder / HISTORY).read_text().splitlines()
    return tuple(json.loads(line) for line in lines)


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of a JSONL file that may be growing; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().split(b"\n")
        content = json.loads(lines[-2]) if len(lines) > 1 else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@torch.no_grad()
def _fill(path: Path, tensors: dict[str, Tensor], group: str, target: dict[str, Tensor]) -> None:
    stored = checkpoint.group(tensors, group)
    if stored.keys() != target.keys():
        odd = sorted(stored.keys() ^ target.keys())
        raise CheckpointError(
            f"{path}: its {group} differ from the model's in {', '.join(odd[:5])}; "
            "resume with the configuration of the run"
        )
    for name, value in target.items():
        if stored[name].shape != value.shape or stored[name].dtype != value.dtype:
            raise CheckpointError(
                f"{path}: {group} {name} is {stored[name].dtype} {tuple(stored[name].shape)}, "
                f"the model has {value.dtype} {tuple(value.shape)}; "
                "resume with the configuration of the run"
            )
        value.copy_(stored[name])


_RENAMED = {  # what checkpoints of 0.1 call settings
    "settings.clip": "settings.max_gradient_norm",
    "settings.improvement": "settings.min_improvement",
}


def _refuse_other_run(path: Path, stored: dict[str, Any], given: dict[str, Any]) -> None:
    old = {_RENAMED.get(key, key): value for key, value in _flat(stored).items()}
    new = _flat(given)
    changed = [
        f"{key} was {old.get(key)!r}, now {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if changed:
        raise CheckpointError(
            f"{path}: this run cannot be resumed with other settings or data: "
            f"{'; '.join(changed)}; restore them, or start a new run in another folder"
        )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        result |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return result


def _leaves(params: Params, settings: TrainSettings) -> Params:
    copies = _copies(params)
    return {
        name: value.to(device=settings.device, dtype=settings.torch_dtype).requires_grad_(True)
        for name, value in copies.items()
    }


def _copies(params: Params) -> Params:
    """Contiguous copies: a checkpoint loses strides, and matrix products may round by them."""
    return {
        name: value.detach().clone(memory_format=torch.contiguous_format)
        for name, value in params.items()
    }


def _finite(value: Any) -> Any:
    """The same with null for nan and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
