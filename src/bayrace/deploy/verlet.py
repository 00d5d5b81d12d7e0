"""Verlet list: neighbours within cutoff + skin, found once and reused while atoms move little.

A pair outside the list had |r⁰| ≥ r_c + skin when the list was made. Write the motion since then as
a homogeneous strain F of the cell plus displacements u_i: r = r⁰F + u_j − u_i. Then
|r| ≥ σ_min(F)·(r_c + skin) − 2·max|u|, and while that is at least r_c no pair can be missing. The
bound is exact, for molecular dynamics and for a changing cell alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.data.batch import batch_order, build_graph, collate
from bayrace.data.check import check_frame
from bayrace.data.frame import Frame, bare_frame

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Geometry:
    """One structure, plain arrays."""

    numbers: NDArray[np.int64]  # (n,)
    positions: Array  # (n, 3) Å
    cell: Array  # (3, 3) Å, rows; those of directions that are not periodic are ignored
    pbc: NDArray[np.bool_]  # (3,)


class VerletList:
    """Graphs of a structure that moves; `rebuilds` counts the searches for neighbours."""

    def __init__(
        self, *, elements: tuple[int, ...], cutoff: float, skin: float, device: torch.device
    ) -> None:
        if not 0.0 <= skin < np.inf:
            raise ValueError(f"skin={skin} Å: give a length of zero or more, 0.5 is usual")
        self.rebuilds = 0
        self._elements, self._cutoff, self._skin = elements, cutoff, skin
        self._device = device
        self._candidates: _Candidates | None = None
        self._selected: _Selected | None = None
        self._square: Tensor | None = None  # (P,) Å², of all candidates in the last geometry

    def graph(self, geometry: Geometry, *, dtype: torch.dtype) -> GraphBatch:
        """The graph of all pairs closer than the cutoff, as a batch of one structure.

        Positions are those of the structure up to whole lattice vectors and a common translation:
        coordinates stay small, so float32 does not lose digits to a drift.
        """
        _check(geometry)
        geometry = replace(geometry, cell=np.where(geometry.pbc[:, None], geometry.cell, 0.0))
        if self._candidates is None or not self._candidates.cover(geometry, self._cutoff):
            self._candidates, self._selected = self._search(geometry), None
        moved, self._square = self._candidates.at(geometry)
        close = self._square < self._cutoff**2
        if self._selected is None or not torch.equal(self._selected.close, close):
            self._selected = _Selected(close, select_pairs(self._candidates.batch, close))
        positions, cell, volume = moved
        batch = self._selected.batch
        return replace(batch, positions=positions, cell=cell, volume=volume).to(dtype=dtype)

    def pairs(self) -> tuple[NDArray[np.int64], Array]:
        """Atoms (2, p) and distances (p,), Å, of the pairs in the last graph, each pair once."""
        if self._candidates is None or self._selected is None or self._square is None:
            raise ValueError("no geometry has been seen yet; ask for its graph first")
        selected = self._selected
        if selected.ends is None:
            selected.places = np.flatnonzero(selected.close.numpy(force=True))
            selected.ends = self._candidates.atoms[:, selected.places]
        return selected.ends, np.sqrt(self._square.numpy(force=True)[selected.places])

    def _search(self, geometry: Geometry) -> _Candidates:
        self.rebuilds += 1
        check_frame(_frame(geometry))
        wraps = np.floor(geometry.positions @ np.linalg.pinv(geometry.cell))
        local = replace(geometry, positions=_local(geometry, wraps))
        reach = self._cutoff + self._skin
        graph = build_graph(_frame(local), elements=self._elements, cutoff=reach)
        batch = collate(
            [graph],
            elements_count=len(self._elements),
            dtype=torch.float64,
            device=self._device,
        )
        first = batch.pair_edges[0]
        return _Candidates(
            start=local,
            reach=reach,
            wraps=wraps,
            batch=batch,
            order=batch_order(batch),
            pair_ends=batch.edges[:, first],
            pair_shifts=batch.shifts[first],
        )


def select_pairs(batch: GraphBatch, keep: Tensor) -> GraphBatch:
    """The batch with only the pairs where `keep` (P,) is true.

    Both edges of a pair stay or go together, and their order is kept, so the invariants of
    GraphBatch hold: edges sorted by receiver, reverse and pair consistent.
    """
    edge = keep[batch.pair]
    before = torch.nn.functional.pad(edge.cumsum(0), (1, 0))  # kept edges before each one
    pairs_before = keep.cumsum(0) - 1
    return replace(
        batch,
        edges=batch.edges[:, edge],
        shifts=batch.shifts[edge],
        first_edge=before[batch.first_edge],
        reverse=before[batch.reverse[edge]],
        pair=pairs_before[batch.pair[edge]],
        pair_edges=before[batch.pair_edges[:, keep]],
    )


@dataclass(eq=False)
class _Selected:
    """The pairs that were close in the last geometry; most steps find the same ones."""

    close: Tensor  # (P,)
    batch: GraphBatch
    places: NDArray[np.int64] | None = None  # (p,) among the candidates, where somebody has asked
    ends: NDArray[np.int64] | None = None  # (2, p) their atoms


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Pairs within `reach` of each other in the geometry `start`."""

    start: Geometry  # positions local, see _local
    reach: float  # cutoff + skin, Å
    wraps: Array  # (n, 3) whole lattice vectors removed from the positions
    batch: GraphBatch  # float64
    order: Tensor  # (n,) batch order from file order
    pair_ends: Tensor  # (2, P) receiver and sender of each pair's first edge
    pair_shifts: Tensor  # (P, 3)

    @cached_property
    def atoms(self) -> NDArray[np.int64]:
        """(2, P) the ends of each pair in file order."""
        ends: NDArray[np.int64] = self.order[self.pair_ends].numpy(force=True)
        return ends

    def cover(self, geometry: Geometry, cutoff: float) -> bool:
        """Whether every pair of `geometry` closer than `cutoff` is among the candidates."""
        start = self.start
        if not (
            np.array_equal(geometry.numbers, start.numbers)
            and np.array_equal(geometry.pbc, start.pbc)
        ):
            return False
        moved = _local(geometry, self.wraps)
        stretch = 1.0
        affine = start.positions
        if not np.array_equal(geometry.cell, start.cell):
            if not geometry.pbc.all():
                return False  # a slab's cell does not say how its third direction deforms
            strain = np.linalg.solve(start.cell, geometry.cell)
            stretch = float(np.linalg.svd(strain, compute_uv=False)[-1])
            affine = affine @ strain
        shift = float(np.sqrt(np.max(np.sum((moved - affine) ** 2, axis=1))))
        return stretch * self.reach - 2.0 * shift >= cutoff

    def at(self, geometry: Geometry) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Positions, cell and volume of a geometry, and squared distances of the pairs (P,)."""
        device = self.order.device
        local = torch.from_numpy(_local(geometry, self.wraps)).to(device)
        cell = torch.from_numpy(geometry.cell).to(device)
        positions = local[self.order]
        receiver, sender = self.pair_ends
        vectors = positions[sender] - positions[receiver] + self.pair_shifts @ cell
        volume = abs(np.linalg.det(geometry.cell)) if geometry.pbc.all() else np.nan
        moved = (positions, cell.unsqueeze(0), torch.full_like(self.batch.volume, float(volume)))
        return moved, vectors.square().sum(1)


def _local(geometry: Geometry, wraps: Array) -> Array:
    """Positions moved by whole lattice vectors and centred."""
    local = geometry.positions - wraps @ geometry.cell
    centred: Array = local - local.mean(axis=0)
    return centred


def _frame(geometry: Geometry) -> Frame:
    return bare_frame(
        geometry.numbers, geometry.positions, geometry.cell, geometry.pbc, source="atoms"
    )


def _check(geometry: Geometry) -> None:
    if len(geometry.numbers) == 0:
        raise ValueError("the structure has no atoms; give at least one")
    finite = np.isfinite(geometry.positions).all(axis=1)
    if not finite.all():
        atom = int(np.argmin(finite))
        raise ValueError(
            f"atom {atom} is at {geometry.positions[atom]}: the simulation has blown up; use a "
            "smaller time step, or check whether the potential was trained for such structures"
        )
    if not np.isfinite(geometry.cell[geometry.pbc]).all():
        raise ValueError(
            f"the cell is {geometry.cell.tolist()}: the simulation has blown up; use a smaller "
            "time step, a slower barostat, or correct the cell"
        )
