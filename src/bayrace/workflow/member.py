"""What the folder of a member tells about it, while it is trained and afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bayrace.config import Config, plain_values_of
from bayrace.config.renamed import new_names
from bayrace.posterior.point import Point
from bayrace.potential.potential import Potential, PotentialError
from bayrace.system.jobs import Outcome
from bayrace.train.state import HISTORY, last_line
from bayrace.workflow.folder import MODEL, TEST

_FREE = ("threads", "device", "checkpoint_every")  # of `train`: change nothing that was learnt


@dataclass(frozen=True)
class MemberProgress:
    """Where a member is."""

    index: int
    state: Literal["waiting", "running", "finished", "failed", "interrupted"]
    error: str  # why it failed
    pid: int | None  # of its process, while it runs
    epoch: int  # finished ones
    max_epochs: int
    metrics: Mapping[str, float] = field(hash=False)  # of the last validation; see MONITORS
    elapsed: float  # seconds of training, at the end of that epoch
    eta: float | None  # seconds, estimated; None before the first epoch ends


@dataclass(frozen=True)
class SideBySide:
    """How members are trained beside each other, who hears of it and who may end it."""

    workers: int | None = None  # members at a time; None: as many as there are cores for
    pin: bool = True  # each keeps to its own cores: faster, unless others use them too
    observer: Callable[[Sequence[MemberProgress]], None] = lambda _: None  # a few times a second
    stop: Callable[[], bool] = lambda: False  # once it is true they save and end
    scheduler: str | None = None  # address of a dask scheduler whose workers do it; None: here


def look(index: int, config: Config, *, pid: int | None, outcome: Outcome | None) -> MemberProgress:
    """What is known of a member."""
    line = last_line(Path(config.output) / HISTORY)
    epoch, elapsed = int(line.get("epoch", 0)), float(line.get("elapsed", 0.0))
    state = outcome.state if outcome else "waiting" if pid is None else "running"
    return MemberProgress(
        index=index,
        state=state,
        error=outcome.error if outcome else "",
        pid=pid,
        epoch=epoch,
        max_epochs=config.train.max_epochs,
        metrics=line.get("valid", {}),
        elapsed=elapsed,
        eta=_eta(config, epoch, elapsed),
    )


def finished_potential(config: Config) -> Potential | None:
    """The potential of a member that was trained to its end under this configuration, if it was."""
    folder = Path(config.output)
    if config.data.test and not (folder / TEST).is_file():
        return None
    try:
        potential = Potential.load(folder / MODEL, device="cpu")
    except (PotentialError, OSError):
        return None
    same = _binding(potential.config) == _binding(plain_values_of(config))
    return potential if same and potential.statistics["reason"] != "interrupted" else None


def load_member(path: str, index: int) -> Potential:
    """One member of an ensemble's file as a potential of its own, without a calibration."""
    potential = Potential.load(path)
    members = potential.members
    count = next(iter(members.values())).shape[0]
    if index >= count:
        raise PotentialError(f"{path} has {count} members and no member {index}; train as many")
    weights = {name: value[index] for name, value in members.items()}
    return replace(potential, posterior=Point(weights), calibration=None)


def _binding(config: Mapping[str, Any]) -> dict[str, Any]:
    config = new_names(config)  # of an earlier version
    train = {key: value for key, value in config["train"].items() if key not in _FREE}
    return {**config, "train": train, "output": None, "log": None}


def _eta(config: Config, epoch: int, elapsed: float) -> float | None:
    if epoch == 0:
        return None
    rest = elapsed / epoch * (config.train.max_epochs - epoch)
    limit = config.train.max_time
    return rest if limit is None else max(0.0, min(rest, limit - elapsed))
