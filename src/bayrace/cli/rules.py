"""The stop rule, and other options that commands for simulations share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from bayrace.potential.potential import Potential
    from bayrace.simulate.stop import StopRule

Timestep = Annotated[float, typer.Option(help="Time step, fs.")]
Pressure = Annotated[float, typer.Option(help="Pressure of --ensemble npt, GPa.")]
PressureRelaxation = Annotated[
    float, typer.Option(help="Relaxation time of the pressure with --ensemble npt, fs.")
]
UncertaintyEvery = Annotated[int, typer.Option(min=1, help="Steps between evaluations of σ.")]
MaxForceError = Annotated[
    float, typer.Option(help="Stop rule: largest force error that is allowed on an atom, eV/Å.")
]
Probability = Annotated[
    float,
    typer.Option(help="Stop rule: act where a larger force error is likelier than this (0 to 1)."),
]
Action = Annotated[
    Literal["stop", "record", "off"],
    typer.Option(help="What the stop rule does: end the run, only record its P, or nothing."),
]
GapLimit = Annotated[
    str,
    typer.Option(
        help="Stop rule: act also where two atoms are at a distance farther than this, Å, from "
        "those of the training data; auto: twice what is usual among them, five times "
        "for networks that began with pretrained weights; off."
    ),
]
StateModels = Annotated[
    list[Path],
    typer.Argument(
        help="Potentials: those of energy_mean and energy_soft_gap; or one for each state, "
        "lowest first; with --diabatic those of E_PPS, E_OSS and Δ²."
    ),
]
Diabatic = Annotated[
    bool, typer.Option(help="The three potentials are those of E_PPS, E_OSS and Δ².")
]


def make_rule(
    potential: Potential,
    *,
    max_force_error: float,
    probability: float,
    action: str,
    gap: str,
    over_atoms: Literal["any", "max"] = "any",
) -> StopRule | None:
    """The rule of these options; None where it is off."""
    from bayrace.simulate.stop import StopRule

    if action == "off":
        return None
    limit = gap_limit(gap, potential)
    acts: Any = action
    return StopRule(max_force_error, probability, over_atoms=over_atoms, action=acts, gap=limit)


def gap_limit(gap: str, potential: Potential) -> float | None:
    """How far, Å, a distance may be from those of the training data; None: as far as it likes."""
    if gap == "auto":
        return potential.gap_limit
    if gap == "off":
        return None
    try:
        return float(gap)
    except ValueError:
        raise ValueError(f"--gap {gap}: give a distance in Å, such as 0.05, auto or off") from None


def read_known(files: str | Sequence[str], potential: Potential) -> Iterator[Any]:
    """Structures of files as ASE holds them; of elements that the potential knows."""
    from bayrace.data.batch import species_of
    from bayrace.data.frame import frame_from_atoms
    from bayrace.data.read import iterate_atoms

    for path, index, atoms in iterate_atoms(files):
        frame = frame_from_atoms(atoms, keys=None, source=str(path), index=index)
        species_of(frame, potential.elements)
        yield atoms


def read_one(start: str, potential: Potential) -> Any:
    """The one structure of a file as ASE holds it, velocities included."""
    from bayrace.data.frame import DataError

    found = read_known(start, potential)
    atoms = next(found)
    if next(found, None) is not None:
        raise DataError(f"{start}: holds several structures; choose one, such as {start}@0")
    return atoms


def refuse_full(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something already."""
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"{folder}: is not empty; name another folder, or --overwrite")
