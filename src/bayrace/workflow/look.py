"""What a folder tells about the trainings and the loop in it, while they run and afterwards."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bayrace.data.frame import DataError
from bayrace.train.state import HISTORY
from bayrace.workflow.folder import CONFIG, held
from bayrace.workflow.loop.state import STATE

_DEPTH = 4  # folders below the one that is looked at: loop, round, ensemble, member


@dataclass(frozen=True)
class Training:
    """One training, as its folder tells."""

    name: str  # of its folder, within the one that is looked at
    running: bool
    epoch: int  # finished ones
    max_epochs: int | None
    step: int
    loss: float | None  # mean of the last epoch
    metrics: Mapping[str, float] = field(hash=False)  # of the last validation
    errors: tuple[float, ...]  # of forces, or of energies: MAE of every validation
    learning_rate: float
    elapsed: float  # s
    eta: float | None  # s, estimated
    changed: float  # when its history was written last, s since 1970


@dataclass(frozen=True)
class Look:
    """All of a folder."""

    folder: Path
    running: bool
    trainings: tuple[Training, ...]  # that changed last, last
    steps: tuple[tuple[int, str, float], ...]  # of a loop: round, step, seconds; the last is last


def look(folder: Path) -> Look:
    """What there is to see now."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; name that of a training or of a loop")
    histories = [path for n in range(_DEPTH) for path in folder.glob(f"{'*/' * n}{HISTORY}")]
    found = [training(path.parent, folder) for path in histories]
    trainings = tuple(sorted((each for each in found if each), key=lambda each: each.changed))
    running = held(folder) or any(each.running for each in trainings)
    return Look(folder, running, trainings, _steps(folder / STATE))


def training(place: Path, folder: Path) -> Training | None:
    """The training in one folder; None before its first epoch has ended."""
    path = place / HISTORY
    lines = _lines(path)
    if not lines:
        return None
    last, valid = lines[-1], [line["valid"] for line in lines if "valid" in line]
    names = ("forces_mae", "energy_mae", "loss")
    name = next((name for name in names if valid and valid[-1].get(name) is not None), "")
    limits = _limits(place / CONFIG)
    epochs, elapsed, epoch = limits.get("max_epochs"), float(last["elapsed"]), int(last["epoch"])
    return Training(
        name=folder.resolve().name if place == folder else str(place.relative_to(folder)),
        running=held(place),
        epoch=epoch,
        max_epochs=epochs,
        step=int(last["step"]),
        loss=last.get("train", {}).get("loss"),
        metrics=valid[-1] if valid else {},
        errors=tuple(each[name] for each in valid if each.get(name) is not None),
        learning_rate=float(last["learning_rate"]),
        elapsed=elapsed,
        eta=_eta(epoch, elapsed, epochs, limits.get("max_time")),
        changed=path.stat().st_mtime,
    )


def _eta(epoch: int, elapsed: float, epochs: int | None, max_time: float | None) -> float | None:
    if not epoch or epochs is None:
        return None
    rest = elapsed / epoch * (epochs - epoch)
    return max(0.0, rest if max_time is None else min(rest, max_time - elapsed))


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a history that may be growing."""
    try:
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in whole]
    except (OSError, ValueError):
        return []


def _limits(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
        return dict(content["train"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return {}


def _steps(path: Path) -> tuple[tuple[int, str, float], ...]:
    """Finished steps of a loop, without touching its file."""
    if not path.is_file():
        return ()
    query = "SELECT round, step, seconds FROM loop_steps ORDER BY ended"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as rows:
            return tuple(rows.execute(query).fetchall())
    except sqlite3.Error:  # it is just being made
        return ()
