"""Bonds of structures: how long they are, and how stiff the forces make them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ase.data import chemical_symbols, covalent_radii

from bayrace.data.frame import Floats, Frame, Integers
from bayrace.data.neighbours import neighbour_list

SEARCH = 5.0  # Å; pairs further apart than this are not looked at
BONDED = (0.85, 1.15)  # times the sum of covalent radii; there, bonds are springs
_FEW = 40  # bonds that a line is not drawn through


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of atoms of a frame, periodic images included, closer than `SEARCH`."""

    first: Integers  # (P,)
    second: Integers  # (P,)
    vectors: Floats  # (P, 3) Å, from the first to the second
    lengths: Floats  # (P,) Å
    relative: Floats  # (P,) lengths in sums of covalent radii


@dataclass(frozen=True)
class Stiffness:
    """How the force along the bonds of two elements answers to their length."""

    elements: tuple[int, int]  # atomic numbers, ascending
    value: float  # eV/Å² if the units are ours; positive where longer bonds pull
    correlation: float  # of force and length; −1 for ideal springs
    bonds: int


def pairs_of(frame: Frame) -> Pairs:
    """The pairs of a frame."""
    edges, shifts = neighbour_list(frame.positions, frame.cell, frame.pbc, SEARCH)
    once = edges[0] <= edges[1]  # own images come twice, which changes nothing
    first, second = edges[:, once]
    box = np.where(frame.pbc[:, None], frame.cell, 0.0)
    vectors = frame.positions[second] - frame.positions[first] + shifts[once] @ box
    lengths = np.linalg.norm(vectors, axis=1)
    radii = covalent_radii[frame.numbers]
    return Pairs(first, second, vectors, lengths, lengths / (radii[first] + radii[second]))


def shortest_distances(frames: Iterable[Frame]) -> dict[str, float]:
    """The shortest distance, Å, of each pair of elements that come closer than `SEARCH`: "H-C"."""
    found: dict[tuple[int, int], float] = {}
    for frame in frames:
        pairs = pairs_of(frame)
        for elements in _kinds(frame, pairs):
            least = float(pairs.lengths[_of(frame, pairs, elements)].min())
            found[elements] = min(found.get(elements, np.inf), least)
    return {pair_name(elements): found[elements] for elements in sorted(found)}


def nearest_relative(frames: Iterable[Frame]) -> Floats:
    """(A,) the distance of each atom to its nearest, in sums of covalent radii, of all frames.

    Noble gases have no bonds, so pairs with one do not count; nor do atoms without neighbours.
    """
    values = []
    for frame in frames:
        pairs = pairs_of(frame)
        noble = np.isin(frame.numbers, (2, 10, 18, 36, 54, 86))
        real = ~(noble[pairs.first] | noble[pairs.second])
        nearest = np.full(len(frame.numbers), np.inf)
        for side in (pairs.first, pairs.second):
            np.minimum.at(nearest, side[real], pairs.relative[real])
        values.append(nearest[np.isfinite(nearest)])
    return np.concatenate(values) if values else np.zeros(0)


def stiffnesses(frames: Sequence[Frame]) -> list[Stiffness]:
    """Lines through force against length of the bonds of each two elements, where there are many.

    The force is half of what pushes the two atoms apart, so that the slope is that of a spring.
    """
    samples: dict[tuple[int, int], list[Floats]] = {}
    for frame in frames:
        if frame.forces is None:
            continue
        pairs = pairs_of(frame)
        along = pairs.vectors / pairs.lengths[:, None]
        push = 0.5 * np.sum((frame.forces[pairs.second] - frame.forces[pairs.first]) * along, 1)
        bonded = (pairs.relative > BONDED[0]) & (pairs.relative < BONDED[1])
        for elements in _kinds(frame, pairs):
            kept = bonded & _of(frame, pairs, elements)
            samples.setdefault(elements, []).append(np.stack([pairs.lengths[kept], push[kept]]))
    found = [_line(elements, np.hstack(parts)) for elements, parts in sorted(samples.items())]
    return [each for each in found if each is not None]


def _line(elements: tuple[int, int], points: Floats) -> Stiffness | None:
    lengths, forces = points - points.mean(axis=1, keepdims=True) if points.size else points
    squares, product = float(lengths @ lengths), float(lengths @ forces)
    spread = float(forces @ forces)
    if len(lengths) < _FEW or squares == 0.0 or spread == 0.0:
        return None
    return Stiffness(
        elements, -product / squares, product / float(np.sqrt(squares * spread)), len(lengths)
    )


def _kinds(frame: Frame, pairs: Pairs) -> list[tuple[int, int]]:
    """Pairs of elements that occur, ascending."""
    both = np.sort(np.stack([frame.numbers[pairs.first], frame.numbers[pairs.second]], 1), axis=1)
    return [(int(low), int(high)) for low, high in np.unique(both, axis=0)]


def _of(frame: Frame, pairs: Pairs, elements: tuple[int, int]) -> npt.NDArray[np.bool_]:
    low, high = elements
    first, second = frame.numbers[pairs.first], frame.numbers[pairs.second]
    return np.asarray(((first == low) & (second == high)) | ((first == high) & (second == low)))


def pair_name(elements: tuple[int, int]) -> str:
    """Two elements as messages show them: "H-C"."""
    return "-".join(chemical_symbols[number] for number in elements)
