"""When to give up a trial of a search: its validation errors, read while it is trained."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.trial import Trial

from bayrace.config import Config
from bayrace.evaluate.metrics.unified import KCAL_PER_MOL_PER_EV

_STAGES = 10  # of a training at which it may be pruned
_LOOKS = 2.0  # seconds between looks at a training's history


class Pruner:
    """Compares the validation errors of a training with those of others at the same stage."""

    def __init__(self, trial: Trial, history: Path, config: Config) -> None:
        self.trial, self.history, self.config = trial, history, config
        self.pruned, self.looked, self.stage = False, 0.0, 0

    def hopeless(self) -> bool:
        """Whether to give up; decided at most once every few seconds."""
        now = time.monotonic()
        if self.pruned or now - self.looked < _LOOKS:
            return self.pruned
        self.looked = now
        line = _last_validation(self.history)
        stage = 0 if line is None else int(_STAGES * self.progress(line))
        if line is not None and stage > self.stage:
            self.stage = stage
            self.trial.report(_accuracy(line["valid"]), stage)
            self.pruned = self.trial.should_prune()
        return self.pruned

    def progress(self, line: Mapping[str, Any]) -> float:
        """Of the training, 0 to 1."""
        train = self.config.train
        share = float(line["epoch"]) / train.max_epochs
        if train.max_time is not None:
            share = max(share, float(line["elapsed"]) / train.max_time)
        return min(share, 1.0)


def _last_validation(history: Path) -> dict[str, Any] | None:
    """The last line of a history that has one; None while there is none."""
    if not history.is_file():
        return None
    for line in reversed(history.read_text(encoding="utf-8").splitlines()):
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:  # is being written
            continue
        if found.get("valid"):
            return found
    return None


def _accuracy(metrics: Mapping[str, float]) -> float:
    """The part of the score that a training tells while it goes on; errors are meV."""
    errors = [metrics.get(name, 0.0) for name in ("energy_rmse", "forces_rmse")]
    return 0.25 * KCAL_PER_MOL_PER_EV * sum(errors) / 1000
