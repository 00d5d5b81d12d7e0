"""Who hears of a loop while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands show their help without torch
    from bayrace.label.label import Progress
    from bayrace.report.round import Round
    from bayrace.workflow.loop.runs import RunRecord
    from bayrace.workflow.loop.steps import Step
    from bayrace.workflow.member import MemberProgress


class LoopObserver:
    """Hears everything and does nothing; override what is of interest."""

    def begins(self, number: int, step: str) -> None:
        """A step of a round is started."""

    def ends(self, number: int, result: Step, seconds: float | None) -> None:
        """A step is done; `seconds` are None if it was found done."""

    def members(self, members: Sequence[MemberProgress]) -> None:
        """Members of an ensemble are trained; heard a few times a second."""

    def labels(self, progress: Progress) -> None:
        """A call of the oracle has ended."""

    def run(self, run: RunRecord) -> None:
        """A run of the exploration has ended."""

    def round(self, done: Round) -> None:
        """A round is complete."""
