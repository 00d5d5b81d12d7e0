"""Which distances between atoms the training data have, and which they lack.

Networks that have learnt from the same data continue them in the same way, so an ensemble can agree
on a wrong force where a distance was never seen: between the longest bond and the shortest distance
of atoms that are not bonded, say. Such gaps need no network to be found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayrace.data.dataset import Dataset
from bayrace.data.frame import Floats, Frame, Integers
from bayrace.data.neighbours import edge_lengths, neighbour_list

RESOLUTION = 0.002
"""Å, to which distances are kept."""

ENOUGH = 3
"""Distances that make a neighbourhood known: one odd frame does not."""

STEEP = 2.0
"""How much more a gap counts below the shortest distance, where forces rise steeply."""

Pair = tuple[int, int]
"""Atomic numbers, ascending."""


class Gap(NamedTuple):
    """How far a distance is from those of the training data."""

    size: float  # Å, to the third nearest one of these two elements; ∞ where there are fewer.
    # More than that (`Distances.steep`) where the distance is shorter than all of them.
    distance: float  # Å
    atoms: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Distances:
    """The distances below a cutoff in a set of structures."""

    cutoff: float  # Å
    counts: Mapping[Pair, NDArray[np.uint8]]  # in steps of RESOLUTION from 0, `_MOST` at most
    steep: float = STEEP  # how much more a gap counts below the shortest distance

    @staticmethod
    def of(data: Dataset) -> Distances:
        """Those of a data set, periodic images included; a frame counts once in every step."""
        kinds, steps = len(data.elements), _steps(data.cutoff)
        counts = np.zeros((kinds, kinds, steps), dtype=np.uint8)
        flat = counts.reshape(-1)
        for frame, graph in zip(data.frames, data.graphs, strict=True):
            pairs = _pairs(frame, graph.edges.numpy(), graph.shifts.numpy())
            low, high = np.searchsorted(data.elements, np.sort(pairs.elements, axis=0))
            met = np.unique((low * kinds + high) * steps + _step(pairs.distances))
            flat[met] += flat[met] < _MOST
        known = np.argwhere(counts.any(axis=2)).tolist()
        name = data.elements
        return Distances(data.cutoff, {(name[i], name[j]): counts[i, j] for i, j in known})

    def arrays(self) -> dict[str, NDArray[np.uint8]]:
        """The counts by names such as "6-8"."""
        return {f"{first}-{second}": value for (first, second), value in self.counts.items()}

    @staticmethod
    def restore(cutoff: float, arrays: Mapping[str, NDArray[np.uint8]]) -> Distances:
        """The inverse of `arrays`; ValueError for what is none."""
        for name, value in arrays.items():
            known = all(0 < number < _ELEMENTS for number in _pair(name))
            if not known or value.dtype != np.uint8 or value.shape != (_steps(cutoff),):
                raise ValueError(
                    f"distances {name!r} are {value.dtype} of shape {value.shape}, expected uint8 "
                    f"of shape ({_steps(cutoff)},) for two atomic numbers"
                )
        return Distances(cutoff, {_pair(name): value for name, value in arrays.items()})

    def gap(self, frame: Frame) -> Gap | None:
        """The widest gap that a distance of this frame is in; None where no atoms are close."""
        edges, shifts = neighbour_list(frame.positions, frame.cell, frame.pbc, self.cutoff)
        pairs = _pairs(frame, edges, shifts)
        return self.gap_among(frame.numbers, pairs.atoms, pairs.distances)

    def gap_among(self, numbers: Integers, atoms: Integers, distances: Floats) -> Gap | None:
        """The same for known pairs: atoms (2, p) and distances (p,), Å, below `cutoff`."""
        if not len(distances):
            return None
        sizes = self._sizes(_Pairs(atoms, numbers[atoms], distances), self.table)
        widest = int(np.argmax(sizes))
        first, second = atoms[:, widest].tolist()
        return Gap(float(sizes[widest]), float(distances[widest]), (first, second))

    def usual(self, data: Dataset) -> float | None:
        """The gap, Å, that 99 % of the frames of `of` do not exceed; no distance counts for itself.

        None where more of them have a pair of elements that hardly any other frame has.
        """
        tables, sizes = self._gaps(ENOUGH + 1), [0.0]  # the nearest distance is itself
        for frame, graph in zip(data.frames, data.graphs, strict=True):
            pairs = _pairs(frame, graph.edges.numpy(), graph.shifts.numpy())
            sizes.append(self._sizes(pairs, tables).max(initial=0.0))
        gap = float(np.quantile(sizes, 0.99, method="higher"))
        return gap if math.isfinite(gap) else None

    @cached_property
    def table(self) -> Floats:
        """The gap at each distance in steps of RESOLUTION, Å, one row for each pair of elements."""
        return self._gaps(ENOUGH)

    def rows(self, numbers: Integers) -> Integers:
        """Where pairs of the atomic numbers (2, p) are in the table, (p,)."""
        found: Integers = self._rows[*numbers]
        return found

    def _gaps(self, enough: int) -> Floats:
        """Gaps (rows, steps); row 0 is of pairs that were never met."""
        unknown = np.full(_steps(self.cutoff), np.inf)
        known = (_gaps(counts, enough, self.steep) for counts in self.counts.values())
        return np.stack([unknown, *known])

    def _sizes(self, pairs: _Pairs, tables: Floats) -> Floats:
        sizes: Floats = tables[self.rows(pairs.elements), _step(pairs.distances)]
        return sizes

    @cached_property
    def _rows(self) -> Integers:
        """The row of each pair of atomic numbers, in either order."""
        rows = np.zeros((_ELEMENTS, _ELEMENTS), dtype=np.int64)
        for number, (first, second) in enumerate(self.counts, start=1):
            rows[first, second] = rows[second, first] = number
        return rows


_ELEMENTS = 120
_MOST = ENOUGH + 1  # itself and enough others


class _Pairs(NamedTuple):
    """Neighbours, each pair once; an atom and its own images twice."""

    atoms: Integers  # (2, e)
    elements: Integers  # (2, e), atomic numbers
    distances: Floats  # (e,), Å


def _pairs(frame: Frame, edges: Integers, shifts: Integers) -> _Pairs:
    once = edges[0] <= edges[1]
    atoms = edges[:, once]
    distances = edge_lengths(frame.positions, frame.cell, frame.pbc, atoms, shifts[once])
    return _Pairs(atoms, frame.numbers[atoms], distances)


def _steps(cutoff: float) -> int:
    return int(cutoff / RESOLUTION) + 2  # one more, should rounding reach beyond the cutoff


def _step(distances: Floats) -> Integers:
    steps: Integers = (distances / RESOLUTION).astype(np.int64)
    return steps


def _gaps(counts: NDArray[np.uint8], enough: int, steep: float) -> Floats:
    """From each step to the distance that is the `enough`-th nearest to it, Å.

    It is the farther end of a window of so many neighbouring distances, for the nearest window.
    Below the shortest distance it counts `steep` times.
    """
    known, steps = np.repeat(np.arange(len(counts)), counts), np.arange(len(counts))
    if len(known) < enough:
        return np.full(len(counts), np.inf)
    first = np.searchsorted(known, steps)[:, None] + np.arange(-enough, 1)
    first = first.clip(0, len(known) - enough)
    last = first + enough - 1
    reach = np.maximum(abs(steps[:, None] - known[first]), abs(steps[:, None] - known[last]))
    gaps: Floats = RESOLUTION * reach.min(axis=1)
    gaps[: known[0]] *= steep
    return gaps


def _pair(name: str) -> Pair:
    first, second = name.split("-")
    return int(first), int(second)
