"""How large are the errors? Parity of energies and forces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bayrace.data.frame import symbols_of
from bayrace.evaluate.judged import Judged, Quantity
from bayrace.report.curves import thinned
from bayrace.report.document import Axis, Mark, Panel, short

MILLI = 1000.0  # eV to meV
MOST = 5000  # points of one panel


def parity_panels(sets: Sequence[Judged]) -> list[Panel]:
    """Predicted against reference values; a quantity without labels has no panel."""
    panels = []
    if any(each.energy.size for each in sets):
        panels.append(_energy(sets) if sets[0].target.is_energy else _property(sets))
    if any(each.forces.size for each in sets):
        panels.append(_forces(sets))
    return panels


def share(sets: Sequence[Judged], quantity: str) -> int:
    """Points each set may draw at most, so that the panel uses its limit and stays within."""
    sizes = sorted(getattr(each, quantity).size for each in sets)
    left = MOST
    for place, size in enumerate(sizes):
        cap = left // (len(sizes) - place)
        if size > cap:
            return cap
        left -= size
    return MOST


def point_names(each: Judged, quantity: Quantity, chosen: NDArray[np.int64]) -> list[str]:
    """The frame, and the atom if there is one ("12 · C3"), counted from 0 as in the file."""
    frames = [each.frames[place].index for place in quantity.frame[chosen]]
    atoms, numbers = quantity.atom[chosen], quantity.number[chosen]
    return [
        f"{frame}" if atom < 0 else f"{frame} · {symbols_of([number])}{atom}"
        for frame, atom, number in zip(frames, atoms, numbers, strict=True)
    ]


def drawn_note(sets: Sequence[Judged], quantity: str) -> str:
    """What a caption says where points were left out."""
    total = sum(getattr(each, quantity).size for each in sets)
    most = share(sets, quantity)
    drawn = sum(min(getattr(each, quantity).size, most) for each in sets)
    return "" if drawn == total else f" {drawn} of {total} points are drawn, chosen at random."


def _energy(sets: Sequence[Judged]) -> Panel:
    labelled = [each for each in sets if each.energy.size]
    first = labelled[0]
    centre = float(np.mean(first.energy.label / first.atom_counts[first.energy.frame]))
    marks = [Mark("diagonal")]
    for colour, each in enumerate(sets, start=1):
        if not each.energy.size:
            continue
        energy, atoms = each.energy, each.atom_counts[each.energy.frame]
        chosen = thinned(energy.size, share(sets, "energy"))
        rmse = MILLI * float(np.sqrt(np.mean((energy.error / atoms) ** 2)))
        marks.append(
            Mark(
                "points",
                f"{each.name}: RMSE {short(rmse)}",
                colour,
                x=MILLI * (energy.label / atoms - centre)[chosen],
                y=MILLI * (energy.mean / atoms - centre)[chosen],
                names=point_names(each, energy, chosen),
            )
        )
    return Panel(
        "parity-energy",
        "Energy per atom",
        f"Predicted against reference energies per atom, relative to the mean of “{first.name}” "
        "(RMSE in meV/atom). On the line the prediction is exact." + drawn_note(sets, "energy"),
        Axis("reference energy", "meV/atom"),
        Axis("predicted energy", "meV/atom"),
        marks,
        square=True,
    )


def _property(sets: Sequence[Judged]) -> Panel:
    """Values of a property as they are."""
    target = sets[0].target
    return Panel(
        "parity-energy",
        target.name,
        f"Predicted against reference {target.name} (RMSE in {target.shown_unit}). On the line the "
        "prediction is exact." + drawn_note(sets, "energy"),
        Axis(f"reference {target.name}", target.unit),
        Axis(f"predicted {target.name}", target.unit),
        _parity(sets, "energy", target.factor),
        square=True,
    )


def _parity(sets: Sequence[Judged], quantity: str, factor: float) -> list[Mark]:
    """The diagonal, and the points of every set with their RMSE times a factor."""
    marks = [Mark("diagonal")]
    for colour, each in enumerate(sets, start=1):
        value: Quantity = getattr(each, quantity)
        if not value.size:
            continue
        chosen = thinned(value.size, share(sets, quantity))
        marks.append(
            Mark(
                "points",
                f"{each.name}: RMSE {short(factor * value.rmse)}",
                colour,
                x=value.label[chosen],
                y=value.mean[chosen],
                names=point_names(each, value, chosen),
            )
        )
    return marks


def _forces(sets: Sequence[Judged]) -> Panel:
    return Panel(
        "parity-forces",
        "Force components",
        "Predicted against reference force components (RMSE in meV/Å)."
        + drawn_note(sets, "forces"),
        Axis("reference force", "eV/Å"),
        Axis("predicted force", "eV/Å"),
        _parity(sets, "forces", MILLI),
        square=True,
    )
