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
from bayrace.nn.pairs import measure, select_pairs

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
        cell = np.where(geometry.pbc[:, None], geometry.cell, 0.0)
        geometry = Geometry(geometry.numbers, geometry.positions, cell, geometry.pbc)
        local = None
        if self._candidates is not None:
            local = self._candidates.covered(geometry, self._cutoff)
        if self._candidates is None or local is None:
            self._candidates, self._selected = self._search(geometry), None
            local = self._candidates.start.positions
        known, selected = self._candidates, self._selected
        positions, offsets = known.at(geometry, local)
        before = None if selected is None else selected.close
        self._square, close = measure(positions, known.pair_ends, offsets, self._cutoff, before)
        if selected is None or close is not before or selected.batch.shifts.dtype != dtype:
            selected = _Selected(close, select_pairs(known.batch_of(dtype), close))
            self._selected = selected
        volume = abs(float(np.linalg.det(cell))) if geometry.pbc.all() else np.nan
        return replace(
            selected.batch,
            positions=positions.to(dtype),
            cell=torch.from_numpy(cell).to(self._device, dtype).unsqueeze(0),
            volume=torch.full((1,), volume, dtype=dtype, device=self._device),
        )

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

    def covered(self, geometry: Geometry, cutoff: float) -> Array | None:
        """Local positions if every pair closer than `cutoff` is among the candidates, or None."""
        start = self.start
        if not (
            np.array_equal(geometry.numbers, start.numbers)
            and np.array_equal(geometry.pbc, start.pbc)
        ):
            return None
        moved = _local(geometry, self.wraps)
        stretch = 1.0
        affine = start.positions
        if not np.array_equal(geometry.cell, start.cell):
            if not geometry.pbc.all():
                return None  # a slab's cell does not say how its third direction deforms
            strain = np.linalg.solve(start.cell, geometry.cell)
            stretch = float(np.linalg.svd(strain, compute_uv=False)[-1])
            affine = affine @ strain
        shift = float(np.sqrt(np.max(np.sum((moved - affine) ** 2, axis=1))))
        return moved if stretch * self.reach - 2.0 * shift >= cutoff else None

    def at(self, geometry: Geometry, local: Array) -> tuple[Tensor, Tensor]:
        """Positions (n, 3) in batch order, and what is added to vectors of pairs (P, 3)."""
        positions = torch.from_numpy(local).to(self.order.device)[self.order]
        if not np.array_equal(geometry.cell, self.start.cell):
            return positions, self._offsets_in(geometry.cell)
        return positions, self._offsets

    def batch_of(self, dtype: torch.dtype) -> GraphBatch:
        """All candidates in this precision."""
        return self._single if dtype == torch.float32 else self.batch.to(dtype=dtype)

    @cached_property
    def _single(self) -> GraphBatch:
        return self.batch.to(dtype=torch.float32)

    @cached_property
    def _offsets(self) -> Tensor:
        return self._offsets_in(self.start.cell)

    def _offsets_in(self, cell: Array) -> Tensor:
        return self.pair_shifts @ torch.from_numpy(cell).to(self.order.device)


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
