"""Frames with elements that a potential was not trained with: unknown beyond any doubt.

No prediction is made of them, by this package at least; where a score is asked how well it tells
unknown structures, they count as detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bayrace.data.frame import Frame, symbols_of


@dataclass(frozen=True, eq=False)
class ByElements:
    """The frames of a set, in their order."""

    usual: list[Frame]  # of known elements alone
    strange: list[Frame]
    elements: tuple[int, ...]  # atomic numbers that are not known

    def describe(self) -> str:
        """What is to be told of a set with strange frames."""
        total = len(self.usual) + len(self.strange)
        return (
            f"{len(self.strange)} of {total} structures have {symbols_of(self.elements)}, which "
            "the training data did not have: no prediction, detected"
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return {"frames": len(self.strange), "elements": list(self.elements)}


def by_elements(frames: Sequence[Frame], known: Sequence[int]) -> ByElements:
    """The frames that a potential of the `known` elements can predict, and the others."""
    others = [set(frame.numbers.tolist()) - set(known) for frame in frames]
    return ByElements(
        usual=[frame for frame, found in zip(frames, others, strict=True) if not found],
        strange=[frame for frame, found in zip(frames, others, strict=True) if found],
        elements=tuple(sorted(set().union(*others))),
    )
