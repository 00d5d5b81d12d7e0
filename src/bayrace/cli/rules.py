"""The stop rule as options of the commands that run other simulation codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bayrace.cli.md import gap_limit

if TYPE_CHECKING:
    from bayrace.potential.potential import Potential
    from bayrace.simulate.stop import StopRule

Bound = Annotated[
    float, typer.Option(help="Stop rule: stop where a force error larger than this, eV/Å, ...")
]
Probability = Annotated[float, typer.Option(help="... is likelier than this (0 to 1).")]
Action = Annotated[
    Literal["stop", "record", "off"],
    typer.Option(help="What the stop rule does: end the run, only record its P, or nothing."),
]
Gap = Annotated[
    str,
    typer.Option(
        help="Stop rule: also where two atoms are at a distance farther than this, Å, from those "
        "of the training data; auto: twice what is usual among them; off."
    ),
]


def make_rule(
    potential: Potential, *, bound: float, probability: float, action: str, gap: str
) -> StopRule | None:
    """The rule of these options; None where it is off."""
    from bayrace.simulate.stop import StopRule

    if action == "off":
        return None
    limit = gap_limit(gap, potential)
    return StopRule(bound, probability, action="stop" if action == "stop" else "record", gap=limit)


def read_one(start: str) -> Any:
    """The one structure of a file as ASE holds it, velocities included."""
    from bayrace.data.read import DataError, iterate_atoms

    found = iterate_atoms(start)
    _, _, atoms = next(found)
    if next(found, None) is not None:
        raise DataError(f"{start}: holds several structures; choose one, such as {start}@0")
    return atoms


def refuse_full(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something already."""
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"{folder}: is not empty; name another folder, or --overwrite")
