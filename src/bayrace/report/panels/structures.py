"""The structures a potential is most wrong about, for the 3D viewer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayrace.data.frame import symbols_of
from bayrace.evaluate.judged import Array, Judged
from bayrace.report.document import Structure, Structures, short
from bayrace.report.panels.accuracy import MILLI

PER_SET = 3
MOST_ATOMS = 2000  # a larger structure would make the page heavy
_CAPTION = (
    "The structures of each set whose forces (or energies, where there are no forces) are most "
    "wrong. Colour: predicted σ of the force on each atom, or how little the training data fix the "
    "energy of the atom; arrows: error of the force, prediction minus reference. A long arrow on "
    "an atom of small σ: the potential is wrong there and does not know it."
)


def worst_structures(sets: Sequence[Judged], *, per_set: int = PER_SET) -> Structures | None:
    """The worst of each set, the most wrong first; None if all are too large to show."""
    found = [
        _structure(each, int(place), float(wrong[place]))
        for each in sets
        for wrong in [_wrongness(each)]
        for place in np.argsort(-wrong, kind="stable")[:per_set]
        if np.isfinite(wrong[place]) and each.atom_counts[place] <= MOST_ATOMS
    ]
    return Structures(_CAPTION, found) if found else None


def _wrongness(each: Judged) -> Array:
    """RMSE of the forces of each structure, or |error| of its energy per atom, (S,)."""
    if each.forces.size:
        squares = np.full(len(each.frames), -np.inf)
        sums = np.bincount(
            each.forces.frame, weights=each.forces.error**2, minlength=len(each.frames)
        )
        counts = np.bincount(each.forces.frame, minlength=len(each.frames))
        squares[counts > 0] = sums[counts > 0] / counts[counts > 0]
        return np.where(squares < 0, -np.inf, np.sqrt(np.maximum(squares, 0)))
    result = np.full(len(each.frames), -np.inf)
    energy = each.energy
    sizes = each.atom_counts[energy.frame] if each.target.extensive else 1
    result[energy.frame] = np.abs(energy.error) / sizes
    return result


def _structure(each: Judged, place: int, wrong: float) -> Structure:
    frame = each.frames[place]
    periodic = bool(frame.pbc.any())
    atoms = slice(each.starts[place], each.starts[place + 1])
    error = MILLI * each.force_error[atoms]
    spread = MILLI * each.force_std[atoms]
    local = MILLI * each.atomic_std[atoms]
    return Structure(
        title=f"{each.name}, frame {frame.index}",
        detail=_detail(each, place, wrong),
        symbols=[symbols_of([number]) for number in frame.numbers],
        positions=frame.positions if periodic else frame.positions - frame.positions.mean(axis=0),
        cell=frame.cell if periodic else None,
        spread=spread if np.nan_to_num(spread).any() else None,
        local=local if each.target.is_energy and not np.isnan(local).any() else None,
        error=None if np.isnan(error).any() else error,
    )


def _detail(each: Judged, place: int, wrong: float) -> str:
    frame = each.frames[place]
    parts = [f"{len(frame.numbers)} atoms, {frame.config_type}"]
    atoms = slice(each.starts[place], each.starts[place + 1])
    if each.forces.size:
        text = f"force RMSE {short(MILLI * wrong)} meV/Å"
        sigma = MILLI * float(np.sqrt(np.mean(each.force_std[atoms] ** 2)))
        parts.append(text + (f" (predicted σ {short(sigma)})" if sigma > 0 else ""))
    own = each.energy.chosen(each.energy.frame == place)
    if own.size:
        target = each.target
        sigma = target.factor * float(own.std[0])
        wrong = target.factor * float(own.error[0])
        size = f"{'−' if wrong < 0 else '+'}{short(abs(wrong))}"
        text = f"{target.name} error {size} {target.shown_unit}"
        parts.append(text + (f" (predicted σ {short(sigma)})" if sigma > 0 else ""))
    return "; ".join(parts)
