"""Structures that no neighbour search should be given, told by their extent before it begins.

The search (vesin) divides a structure into at most 100 000 cells. It crashes where one direction
would get less than one of them, and fills the memory where a tiny cell repeats an atom millions of
times. Both are mistakes in a file or an exploded simulation, or they can be avoided: a wider
search needs fewer cells. It also takes hours over some cells that are periodic in one or two
directions, so those are completed by empty space.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FARTHEST = 1e8
"""Å: of a coordinate; beyond it float64 keeps less than 1e-8 Å."""

OVERLAP = 0.3
"""Å; no two nuclei of a real structure are closer."""

_MOST_CELLS = 100_000  # of vesin
_CELLS = _MOST_CELLS // 10  # for the rounding of its counts
_WIDEST = 20.0  # Å, or twice the cutoff: a wider search finds too many pairs to throw away
_LEAST = (1.0, OVERLAP, 0.87 * OVERLAP**2, 0.7 * OVERLAP**3)  # of lattices that keep atoms apart
_VOLUME = 0.3  # Å³ of an atom; a twentieth of that in diamond
_CUBE, _CROWD = 2.0, 30  # Å, and the atoms in such a cube that are as dense
_COUNTABLE = 2**26  # cells before vesin makes them fewer, which it counts in 32 bits
_TESTS, _TESTS_EACH = 3e8, 2e4  # pairs tested in a second, or for each of many atoms


class Search(NamedTuple):
    """How far to search, or why not to."""

    reach: float  # Å, at least the cutoff
    box: Floats  # (3, 3) Å; complete where some direction is periodic
    problem: str | None = None  # with the value and the remedy


def plan_search(
    positions: Floats, cell: Floats, pbc: npt.NDArray[np.bool_], cutoff: float
) -> Search:
    """How to search for the neighbours of finite positions (n, 3) in a cell, Å.

    Rows of the cell in directions that are not periodic are zero.
    """
    if far := beyond(positions, cell):
        return Search(math.nan, cell, far)
    if pbc.any() and (crammed := _crammed(cell[pbc], len(positions))):
        return _refused(crammed, "check the cell and its units, or remove the frame")
    box = _completed(positions, cell, pbc, cutoff)
    inside = positions - np.floor(positions @ np.linalg.pinv(box)) @ box if pbc.any() else positions
    widths = _heights(box) if pbc.any() else np.ptp(inside, axis=0)
    reach, limit = cutoff, max(_WIDEST, 2 * cutoff)
    while not _divisible(widths, reach):
        reach *= 1.25
        if reach > limit:
            shown = " x ".join(f"{width:.3g}" for width in widths)
            return _refused(
                f"atoms spread over {shown} Å, too far apart for a search of neighbours",
                "check positions, cell and units, or make each fragment a structure of its own",
            )
    most = max(_TESTS, _TESTS_EACH * len(positions))
    if crowd := _crowd(inside):
        return _refused(
            f"{crowd} atoms in a cube of {_CUBE:g} Å", "check positions and units, or remove them"
        )
    if pbc.any() and _tests(widths, reach, len(positions)) > most:
        shown = " x ".join(f"{width:.3g}" for width in widths)
        return _refused(
            f"the cell is so skewed that its {len(positions)} atoms have more than {most:.0e} "
            f"images to look at (heights {shown} Å)",
            "reduce the cell (ase.build.minkowski_reduce)",
        )
    return Search(reach, box)


def beyond(positions: Floats, cell: Floats) -> str | None:
    """What is wrong with numbers that are finite and nothing more, if anything."""
    for name, values in (("coordinate", positions), ("cell vector", cell)):
        far = float(np.abs(values).max(initial=0.0))
        if far > FARTHEST:
            return (
                f"a {name} of {far:.3g} Å is beyond {FARTHEST:.0e} Å; check positions, cell and "
                "units, or remove the frame"
            )
    return None


def _refused(what: str, remedy: str) -> Search:
    return Search(math.nan, np.zeros((3, 3)), f"{what}; {remedy}")


def _crammed(lattice: Floats, atoms: int) -> str | None:
    """Why atoms of a lattice (k, 3) must overlap, if they must."""
    periods = len(lattice)
    measure = math.sqrt(max(float(np.linalg.det(lattice @ lattice.T)), 0.0))
    shortest = float(np.linalg.norm(lattice, axis=1).min())
    if shortest < OVERLAP:
        return f"a periodic cell vector of {shortest:.3g} Å repeats every atom within {OVERLAP} Å"
    what = ("", "length", "area", "volume")[periods]
    if measure < _LEAST[periods]:
        return f"a periodic {what} of {measure:.3g} Å^{periods} repeats atoms within {OVERLAP} Å"
    if periods == 3 and measure < _VOLUME * atoms:
        return f"{atoms} atoms in {measure:.3g} Å³, less than {_VOLUME} Å³ of each"
    return None


def _completed(
    positions: Floats, cell: Floats, pbc: npt.NDArray[np.bool_], margin: float
) -> Floats:
    """The cell, with vectors across all atoms in the directions that are not periodic."""
    free = 3 - int(pbc.sum())
    if free in (0, 3):
        return cell
    across = np.linalg.svd(cell[pbc])[2][-free:]  # orthonormal, and to the periodic vectors
    lengths = np.ptp(positions @ across.T, axis=0) + 2 * margin
    box = cell.copy()
    box[~pbc] = lengths[:, None] * across
    return box


def _heights(box: Floats) -> Floats:
    """Distance of the two faces of the box in each direction, (3,) Å."""
    heights: Floats = 1.0 / np.linalg.norm(np.linalg.pinv(box), axis=0)
    return heights


def _divisible(widths: Floats, reach: float) -> bool:
    """Whether the cells of a search leave one for each direction, however few there may be.

    Counts a ≥ b ≥ c are scaled to a product of `_CELLS` where it exceeds that; c² / (a b) of it is
    then left for the shortest direction.
    """
    counts = np.maximum(np.floor(widths / reach), 1.0)
    product = float(counts.prod())
    enough = _CELLS * float(counts.min()) ** 3 >= product
    return product <= _CELLS or (enough and product <= _COUNTABLE)


def _crowd(inside: Floats) -> int:
    """The number of atoms in the fullest cube, where that is absurd, else 0."""
    if len(inside) <= _CROWD:
        return 0
    cubes = np.floor((inside - inside.min(axis=0)) / _CUBE).astype(np.int64)
    _, counts = np.unique(cubes @ np.array([1, 2**21, 2**42]), return_counts=True)
    most = int(counts.max())
    return most if most > _CROWD else 0


def _tests(heights: Floats, reach: float, atoms: int) -> float:
    """What a search looks at, about: the cells around each cell, and every atom in them."""
    counts = np.maximum(np.floor(heights / reach), 1.0)
    counts = np.maximum(counts * min(1.0, np.cbrt(_MOST_CELLS / counts.prod())), 1.0)
    around = 2 * np.ceil(reach * counts / heights) + 1
    looks = float(around.prod())
    return max(float(atoms) ** 2 * looks / float(counts.prod()), float(counts.prod()) * looks)
