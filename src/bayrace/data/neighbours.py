"""Neighbour lists (vesin): every directed pair closer than the cutoff, periodic images included."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import vesin

from bayrace.data.extent import plan_search
from bayrace.data.frame import DataError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_MARGIN = 1e-6  # relative; vesin searches this much further, the exact test is ours


def neighbour_list(
    positions: Floats, cell: Floats, pbc: npt.NDArray[np.bool_], cutoff: float
) -> tuple[Integers, Integers]:
    """Return edges (2, E) and shifts (E, 3) of all neighbours with r < cutoff.

    Row 0 of the edges is the receiver i, row 1 the sender j, and r_ij = x_j - x_i + shift @ cell.
    An atom sees its own images. Edges are sorted by (i, j, shift), and with every edge its reverse
    (j, i, -shift) is in the list. Vectors of the cell in non-periodic directions are ignored.

    Raises:
        DataError: the structure is too far apart or too dense to be searched.
    """
    periodic = np.asarray(pbc, dtype=bool)
    box = np.where(periodic[:, None], np.asarray(cell, dtype=np.float64), 0.0)
    points = np.ascontiguousarray(positions, dtype=np.float64)
    plan = plan_search(points, box, periodic, cutoff)
    if plan.problem is not None:
        raise DataError(plan.problem)
    search = vesin.NeighborList(cutoff=plan.reach * (1.0 + _MARGIN), full_list=False)
    pairs, images = search.compute(points, plan.box, bool(periodic.any()), "PS")
    first, second = pairs.astype(np.int64).T
    shift = images.astype(np.int64)
    vectors = points[second] - points[first] + shift @ box
    near = np.einsum("ea,ea->e", vectors, vectors) < cutoff * cutoff
    near &= ~shift[:, ~periodic].any(axis=1)  # images that the completed box has, but no structure
    first, second, shift = first[near], second[near], shift[near]
    # Each pair is found once and mirrored, so rounding at the cutoff cannot break the symmetry.
    receivers = np.concatenate([first, second])
    senders = np.concatenate([second, first])
    shifts = np.concatenate([shift, -shift])
    order = np.lexsort((shifts[:, 2], shifts[:, 1], shifts[:, 0], senders, receivers))
    return np.stack([receivers[order], senders[order]]), shifts[order]


def edge_lengths(
    positions: Floats,
    cell: Floats,
    pbc: npt.NDArray[np.bool_],
    edges: Integers,
    shifts: Integers,
) -> Floats:
    """Return (E,): the distance r_ij of each edge of a `neighbour_list`, or of some of them."""
    box = np.where(pbc[:, None], cell, 0.0)
    vectors = positions[edges[1]] - positions[edges[0]] + shifts @ box
    lengths: Floats = np.linalg.norm(vectors, axis=1)
    return lengths


def reverse_edges(edges: Integers, shifts: Integers) -> Integers:
    """Return (E,): for each edge of a `neighbour_list`, the index of its reverse.

    Sorting the reversed edges by the key the list is sorted by puts edge k's reverse at place k.
    """
    back = -shifts
    return np.lexsort((back[:, 2], back[:, 1], back[:, 0], edges[0], edges[1])).astype(np.int64)
