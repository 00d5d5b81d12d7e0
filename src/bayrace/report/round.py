"""What a page about an active-learning loop is made from: its rounds, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayrace.data.frame import Frame
from bayrace.report.document import Verdict

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Round:
    """One round; number 0 is the start. Units are eV, Å, fs and K."""

    number: int
    labels: int  # paid for so far, those of the start not counted
    failed: int  # structures of this round that have no label
    calls: int  # of the oracle, so far
    train: int  # structures
    valid: int
    errors: Mapping[
        str, Mapping[str, float | None]
    ]  # test set; see `bayrace.workflow.loop.learn.errors`
    newest: Mapping[str, float | None] | None  # the same of the new labels, before training
    runs: Sequence[Mapping[str, Any]] = ()  # of the exploration, without what they visited
    chosen: Sequence[Mapping[str, Any]] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # by step

    @property
    def uncertain(self) -> float | None:
        """Part of the runs that met an uncertain structure; None without runs."""
        if not self.runs:
            return None
        return sum(bool(run["uncertain"]) for run in self.runs) / len(self.runs)

    @property
    def judged(self) -> float | None:
        """RMSE of forces, eV/Å: of the worst test set, else of the newest labels."""
        sets = list(self.errors.values()) or ([self.newest] if self.newest else [])
        found = [each["forces_rmse"] for each in sets]
        return max((value for value in found if value is not None), default=None)


@dataclass(frozen=True)
class Ending:
    """Why a loop ended, and whether that is good."""

    reason: str
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Shown:
    """A structure of n atoms that was chosen, and its forces before it was trained on."""

    pick: Mapping[str, Any]  # one of `Round.chosen`
    frame: Frame
    error: Array  # (n, 3) eV/Å, prediction minus label
    std: Array  # (n, 3) eV/Å
