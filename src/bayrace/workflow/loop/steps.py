"""What the steps of a round come to, as typed values and as the JSON that a loop records.

Files of earlier versions are read too: what they lack has its default, what nobody knows any more
is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar

from bayrace.report.round import Errors, Pick, RunSummary

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """The result of a step; its name is that of the step."""

    name: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """JSON-able, as the state of a loop holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return known(cls, content)


@dataclass(frozen=True)
class Explored(Step):
    """Runs of the newest potential."""

    name: ClassVar[str] = "explore"
    runs: Sequence[RunSummary]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(tuple(known(RunSummary, run) for run in content["runs"]))


@dataclass(frozen=True)
class Chosen(Step):
    """Structures to label, of all that runs have visited."""

    name: ClassVar[str] = "select"
    chosen: Sequence[Pick] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)  # structures by reason
    pool: int = 0  # structures there were
    min_distance: float | None = None  # Å, where it had to be lowered

    def to_json(self) -> dict[str, Any]:
        """JSON-able; the distance has the name that it had in 0.1."""
        content = asdict(self)
        content["apart"] = content.pop("min_distance")
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        picks = tuple(known(Pick, pick) for pick in content["chosen"])
        return cls(picks, content["skipped"], content["pool"], content.get("apart"))


@dataclass(frozen=True)
class Labelled(Step):
    """Labels of what was chosen, in its order."""

    name: ClassVar[str] = "label"
    uses: Sequence[str]  # training, validation, failed
    failures: Sequence[str]  # errors of the oracle
    newest: Errors | None  # of the potential, before it is trained on them; None without labels
    forces_rmse: Sequence[float | None]  # eV/Å, of each structure
    calls: int  # of the oracle, so far

    @property
    def failed(self) -> int:
        """Structures without a label."""
        return list(self.uses).count("failed")


@dataclass(frozen=True)
class Trained(Step):
    """A potential that knows the new labels."""

    name: ClassVar[str] = "train"
    train: int  # structures
    valid: int


@dataclass(frozen=True)
class Scored(Step):
    """Errors on the test sets."""

    name: ClassVar[str] = "evaluate"
    errors: Mapping[str, Errors]

    def to_json(self) -> dict[str, Any]:
        """JSON-able: the sets by name."""
        return dict(self.errors)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(dict(content))


def known(kind: type[T], content: Mapping[str, Any]) -> T:
    """A dataclass from a mapping, whose other keys are left out."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in content.items() if name in names})
