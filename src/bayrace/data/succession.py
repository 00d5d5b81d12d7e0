"""Validation frames that follow training frames in time: almost copies, and so no judges.

A part of a trajectory that is drawn at random has neighbours of every frame in the other part. If
these are much more alike than any two frames are, validation errors are smaller than those of
another trajectory, and so is a σ that is scaled by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayrace.data.frame import Floats, Frame
from bayrace.data.unit_doubts import Doubt

ALIKE = 0.3  # of the usual difference; dynamics written every 100 fs has 0.4 to 0.6
_NEXT = 2  # frames between which time is short
_PAIRS = 200  # that are measured
_FEW = 5  # pairs, below which nothing is said
_THERMAL = 0.3  # Å; what is farther apart in a cell melts, diffuses or has another order of atoms
_ATOMS = 64  # of a molecule, whose distances are compared


def tenth_apart(frames: Sequence[Frame]) -> tuple[list[Frame], list[Frame]]:
    """Frames as a random split would leave them: most, and every tenth."""
    drawn = set(range(5, len(frames), 10))
    most = [frame for place, frame in enumerate(frames) if place not in drawn]
    return most, [frames[place] for place in sorted(drawn)]


def succession_doubts(train: Sequence[Frame], valid: Sequence[Frame]) -> list[Doubt]:
    """Files in which validation frames have almost copies among the training frames."""
    found = []
    for source in dict.fromkeys(frame.source for frame in valid):
        known = [frame for frame in train if frame.source == source]
        asked = [frame for frame in valid if frame.source == source]
        next_to = _neighbours(known, asked)
        if len(next_to) < max(_FEW, min(len(asked), _PAIRS) // 2):
            continue
        near, usual = _typical(next_to), _typical(_any_two(known))
        if usual is None or near is None or near > ALIKE * usual:
            continue
        what = (
            f"frames that follow each other differ by {near:.2g} Å, any two by {usual:.2g} Å, so "
            "single validation frames are almost training frames, and errors and σ of other "
            "trajectories will be larger than theirs"
        )
        remedy = "give data.valid a trajectory of its own, or leave data.split: auto"
        found.append(Doubt(source, what, remedy))
    return found


def _neighbours(known: Sequence[Frame], asked: Sequence[Frame]) -> list[tuple[Frame, Frame]]:
    """Frames with the training frame next to them in the file."""
    by_index = {frame.index: frame for frame in known}
    steps = [sign * step for step in range(1, _NEXT + 1) for sign in (-1, 1)]
    pairs = []
    for frame in asked[:: max(1, len(asked) // _PAIRS)]:
        beside = (by_index.get(frame.index + step) for step in steps)
        pairs += [(frame, other) for other in beside if other is not None][:1]
    return pairs


def _any_two(frames: Sequence[Frame]) -> list[tuple[Frame, Frame]]:
    first, second = np.random.default_rng(0).integers(0, len(frames), (2, _PAIRS))
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    return [(frames[one], frames[two]) for one, two in pairs if one != two]


def _typical(pairs: Sequence[tuple[Frame, Frame]]) -> float | None:
    """Median difference of the pairs that have the same atoms, Å; None for a few."""
    values = [_difference(*pair) for pair in pairs if _same_atoms(*pair)]
    return float(np.median(values)) if len(values) >= _FEW else None


def _same_atoms(one: Frame, two: Frame) -> bool:
    return np.array_equal(one.numbers, two.numbers) and np.array_equal(one.pbc, two.pbc)


def _difference(one: Frame, two: Frame) -> float:
    """Root mean square difference of distances in molecules, of positions in cells; Å."""
    if not one.pbc.any():
        return float(np.sqrt(np.mean((_distances(one) - _distances(two)) ** 2)))
    moved = two.positions - one.positions
    box = one.cell * one.pbc[:, None] + np.diag((~one.pbc).astype(float))
    fractions = moved @ np.linalg.inv(box)
    moved = (fractions - np.round(fractions) * one.pbc) @ box
    return float(min(np.sqrt(np.mean((moved - moved.mean(axis=0)) ** 2)), _THERMAL))


def _distances(frame: Frame) -> Floats:
    places = frame.positions[:_ATOMS]
    return np.asarray(np.linalg.norm(places[:, None] - places[None], axis=-1))
