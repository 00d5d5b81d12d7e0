"""What a page about an active-learning loop is made from: its rounds, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bayrace.data.frame import Frame
from bayrace.report.document import Verdict

Array = NDArray[np.float64]
Errors = Mapping[str, float | None]
"""RMSE, MAE and predicted σ of energies and forces; see `bayrace.workflow.loop.learn.errors`."""


@dataclass(frozen=True)
class RunSummary:
    """A run of an exploration, without what it visited."""

    start: str  # what the structure that it began from is called
    temperature: float  # K
    seed: int
    reason: str  # finished, uncertain, exploded
    message: str
    steps: int
    time: float  # fs, of the last structure that was kept
    forces_std: float | None  # eV/Å, largest of any structure
    risk: float | None  # largest of the stop rule
    uncertain: bool  # whether it met what the rule does not allow, or flew apart
    visits: int  # structures that were kept


@dataclass(frozen=True)
class Pick:
    """A structure that was chosen, where it came from and what it is used for."""

    why: str
    by: str  # the criterion
    score: float
    start: str  # of its run
    temperature: float  # K, of its run
    step: int
    time: float  # fs
    forces_std: float  # eV/Å, largest
    risk: float | None  # of the stop rule
    use: str = ""  # training, validation, failed; empty before it is labelled
    forces_rmse: float | None = None  # eV/Å, before it was trained on


@dataclass(frozen=True)
class Round:
    """One round; number 0 is the start. Units are eV, Å, fs and K."""

    number: int
    labels: int  # paid for so far, those of the start not counted
    failed: int  # structures of this round that have no label
    calls: int  # of the oracle, so far
    train: int  # structures
    valid: int
    errors: Mapping[str, Errors]  # by test set
    newest: Errors | None  # of the new labels, before training
    runs: Sequence[RunSummary] = ()  # of the exploration
    chosen: Sequence[Pick] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # by step

    @property
    def uncertain(self) -> float | None:
        """Part of the runs that met an uncertain structure; None without runs."""
        if not self.runs:
            return None
        return sum(run.uncertain for run in self.runs) / len(self.runs)

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

    pick: Pick  # one of `Round.chosen`
    frame: Frame
    error: Array  # (n, 3) eV/Å, prediction minus label
    std: Array  # (n, 3) eV/Å
