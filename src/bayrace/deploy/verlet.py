"""Verlet list: neighbours within cutoff + skin, found once and reused while atoms move little.

One structure, or several that move together, such as the beads of a path integral.

A pair outside the list had |r⁰| ≥ r_c + skin when the list was made. Write the motion since then as
a homogeneous strain F of the cell plus displacements u_i: r = r⁰F + u_j − u_i. Then
|r| ≥ σ_min(F)·(r_c + skin) − 2·max|u|, and while that is at least r_c no pair can be missing. The
bound is exact, for molecular dynamics and for a changing cell alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.data.batch import batch_order, build_graph, collate
from bayrace.data.check import check_frame
from bayrace.data.distances import RESOLUTION, Distances, Gap
from bayrace.data.frame import Frame, bare_frame
from bayrace.nn.pairs import Followed, Start, select_pairs, widest

Array = NDArray[np.float64]

SKIN = 1.5
"""Å, the usual one. Light atoms move half of it in dozens of steps; a search costs as much as two
steps of a small system, and to follow a pair costs next to nothing."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """One structure, plain arrays."""

    numbers: NDArray[np.int64]  # (n,)
    positions: Array  # (n, 3) Å
    cell: Array  # (3, 3) Å, rows; those of directions that are not periodic are ignored
    pbc: NDArray[np.bool_]  # (3,)


class VerletList:
    """Graphs of structures that move; `rebuilds` counts the searches for neighbours."""

    def __init__(
        self, *, elements: tuple[int, ...], cutoff: float, skin: float, device: torch.device
    ) -> None:
        if not 0.0 <= skin < np.inf:
            raise ValueError(f"skin={skin} Å: give a length of zero or more, {SKIN} is usual")
        self.rebuilds = 0
        self._elements, self._cutoff, self._skin = elements, cutoff, skin
        self._device = device
        self._candidates: _Candidates | None = None
        self._cells: _Cells | None = None
        self._selected: _Selected | None = None
        self._square: Tensor | None = None  # (P,) Å², of all candidates in the last geometry
        self._looked: _Looked | None = None

    def graph(self, geometry: Geometry, *, dtype: torch.dtype) -> GraphBatch:
        """The graph of all pairs closer than the cutoff, as a batch of one structure.

        Positions are those of the structure up to whole lattice vectors and a common translation:
        coordinates stay small, so float32 does not lose digits to a drift.
        """
        return self.batch([geometry], dtype=dtype)

    def batch(self, geometries: Sequence[Geometry], *, dtype: torch.dtype) -> GraphBatch:
        """The same for several structures in one batch."""
        positions = _together([geometry.positions for geometry in geometries])
        found = self._followed(geometries, positions, dtype)
        if found is None:
            for geometry in geometries:
                _check(geometry)
            self._candidates, self._cells = self._search(geometries), None
            self._selected = None
            found = self._followed(geometries, positions, dtype)
            assert found is not None  # nothing has moved
        return self._batch(found, dtype)

    def again(self, positions: Array, *, dtype: torch.dtype) -> GraphBatch | None:
        """The last structures after nothing but their atoms, (N, 3) contiguous, has moved.

        None where neighbours have to be searched.
        """
        known, cells = self._candidates, self._cells
        if known is None or cells is None:
            return None
        found = cells.start.follow(positions, dtype, known.close)
        return None if found is None else self._batch(found, dtype)

    def _batch(self, found: Followed, dtype: torch.dtype) -> GraphBatch:
        known, cells, selected = self._candidates, self._cells, self._selected
        assert known is not None and cells is not None  # noqa: PT018 - both by the search
        self._square = found.square
        if selected is None or found.changed or selected.batch.shifts.dtype != dtype:
            selected = _Selected(select_pairs(known.batch_of(dtype), known.close))
            self._selected = selected
        return selected.batch.moved(found.positions, *cells.in_precision(dtype))

    def pairs(self) -> tuple[NDArray[np.int64], Array]:
        """Atoms (2, p) and distances (p,), Å, of the pairs in the last graph, each pair once.

        Atoms of several structures are counted on.
        """
        ends, square, selected = self.ends(), self._square, self._selected
        assert square is not None and selected is not None  # noqa: PT018 - there are ends
        return ends, np.sqrt(square.numpy(force=True)[selected.places])

    def ends(self) -> NDArray[np.int64]:
        """The same atoms (2, p); the same array while the same pairs are close."""
        candidates, selected = self._candidates, self._selected
        if candidates is None or selected is None:
            raise ValueError("no geometry has been seen yet; ask for its graph first")
        if selected.ends is None:
            selected.places = np.flatnonzero(candidates.close.numpy(force=True))
            selected.ends = candidates.atoms[:, selected.places]
        return selected.ends

    def widest_gap(self, known: Distances) -> Gap | None:
        """The widest gap of the distances in the last graph, of one structure or of all."""
        close, square, rows = self.seen(known)
        candidates, looked = self._candidates, self._looked
        assert candidates is not None and looked is not None  # noqa: PT018 - by `seen`
        found = widest(close, square, rows, looked.table, RESOLUTION)
        if found is None:
            return None
        first, second = candidates.atoms[:, found.place].tolist()
        return Gap(found.gap, found.distance, (first, second))

    def seen(self, known: Distances) -> tuple[Tensor, Tensor, Tensor]:
        """Of pairs (P,) in the last geometry: are they close, squared distances in Å², their rows.

        The rows are those of the table of `known`. All hold until the next geometry.
        """
        candidates, square = self._candidates, self._square
        if candidates is None or square is None:
            raise ValueError("no geometry has been seen yet; ask for its graph first")
        looked = self._looked
        if looked is None or looked.known is not known or looked.candidates is not candidates:
            looked = self._looked = _Looked.of(known, candidates)
        return candidates.close, square, looked.rows

    def _followed(
        self, geometries: Sequence[Geometry], positions: Array, dtype: torch.dtype
    ) -> Followed | None:
        """Where the atoms are; None if a pair may be missing."""
        known = self._candidates
        if known is None or known.kinds != [_kind(each) for each in geometries]:
            return None
        key = [each.cell.tobytes() for each in geometries]
        if self._cells is None or self._cells.key != key:
            for geometry in geometries:
                _check(geometry)
            self._cells = known.deformed(geometries, key, self._cutoff)
        if self._cells is None:
            return None
        return self._cells.start.follow(positions, dtype, known.close)

    def _search(self, geometries: Sequence[Geometry]) -> _Candidates:
        self.rebuilds += 1
        cells, wraps, locals_, graphs = [], [], [], []
        reach = self._cutoff + self._skin
        for geometry in geometries:
            check_frame(_frame(geometry))
            cells.append(_periodic_part(geometry))
            wraps.append(np.floor(geometry.positions @ np.linalg.pinv(cells[-1])))
            free = geometry.positions - wraps[-1] @ cells[-1]
            locals_.append(free - free.mean(axis=0))
            here = replace(geometry, positions=locals_[-1], cell=cells[-1])
            graphs.append(build_graph(_frame(here), elements=self._elements, cutoff=reach))
        batch = collate(
            graphs,
            elements_count=len(self._elements),
            dtype=torch.float64,
            device=self._device,
        )
        first = batch.pair_edges[0]
        return _Candidates(
            kinds=[_kind(each) for each in geometries],
            cells=np.stack(cells),
            positions=locals_,
            wraps=wraps,
            reach=reach,
            batch=batch,
            pair_ends=batch.edges[:, first],
            pair_shifts=batch.shifts[first],
            close=torch.zeros_like(first, dtype=torch.bool),
        )


@dataclass(eq=False)
class _Selected:
    """The pairs that were close in the last geometry; most steps find the same ones."""

    batch: GraphBatch
    places: NDArray[np.int64] | None = None  # (p,) among the candidates, where somebody has asked
    ends: NDArray[np.int64] | None = None  # (2, p) their atoms


@dataclass(frozen=True, eq=False)
class _Cells:
    """What the cells of S structures decide; those of most runs do not change."""

    key: list[bytes]  # of the cells as they were given
    start: Start
    cell: Tensor  # (S, 3, 3) Å
    volume: Tensor  # (S,) Å³
    converted: dict[torch.dtype, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def in_precision(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cells and volumes."""
        if dtype not in self.converted:
            self.converted[dtype] = self.cell.to(dtype), self.volume.to(dtype)
        return self.converted[dtype]


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Pairs within `reach` of each other in the structures of a search."""

    kinds: list[tuple[bytes, bytes]]  # species and pbc of each
    cells: Array  # (S, 3, 3)
    positions: list[Array]  # (n, 3) Å of each, without whole lattice vectors, and centred
    wraps: list[Array]  # (n, 3) the lattice vectors that were removed
    reach: float  # cutoff + skin, Å
    batch: GraphBatch  # float64
    pair_ends: Tensor  # (2, P) receiver and sender of each pair's first edge
    pair_shifts: Tensor  # (P, 3)
    close: Tensor  # (P,) bool, whether they were closer than the cutoff in the last geometry

    @cached_property
    def atoms(self) -> NDArray[np.int64]:
        """(2, P) the ends of each pair in file order."""
        ends: NDArray[np.int64] = batch_order(self.batch)[self.pair_ends].numpy(force=True)
        return ends

    def deformed(
        self, geometries: Sequence[Geometry], key: list[bytes], cutoff: float
    ) -> _Cells | None:
        """The start in cells of now, and how far atoms may be from it; None where nobody knows."""
        cells = np.stack([_periodic_part(each) for each in geometries])
        starts, most = [], []
        for geometry, before, now, then in zip(
            geometries, self.cells, cells, self.positions, strict=True
        ):
            stretch, affine = 1.0, then
            if not np.array_equal(before, now):
                if not geometry.pbc.all():
                    return None  # a slab's cell does not say how its third direction deforms
                strain = np.linalg.solve(before, now)
                stretch = float(np.linalg.svd(strain, compute_uv=False)[-1])
                affine = then @ strain
            slack = (stretch * self.reach - cutoff) / 2
            if slack < 0:
                return None
            starts.append(affine)
            most.append(slack**2)
        counts = np.cumsum([0, *map(len, starts)])
        wraps = [each @ cell for each, cell in zip(self.wraps, cells, strict=True)]
        device = self.batch.positions.device
        given = (counts, np.concatenate(wraps), np.concatenate(starts), np.array(most))
        first, wrap, start, far = (torch.from_numpy(each).to(device) for each in given)
        cell = torch.from_numpy(cells).to(device)
        structure = self.batch.structure_index[self.pair_ends[0]]
        volumes = [
            abs(float(np.linalg.det(each))) if geometry.pbc.all() else np.nan
            for each, geometry in zip(cells, geometries, strict=True)
        ]
        return _Cells(
            key=key,
            start=Start(
                *(first, wrap, start, far, self.batch.file_order, self.pair_ends),
                offsets=torch.einsum("pi,pij->pj", self.pair_shifts, cell[structure]),
                cutoff=cutoff,
            ),
            cell=cell,
            volume=torch.tensor(volumes, dtype=torch.float64, device=device),
        )

    def batch_of(self, dtype: torch.dtype) -> GraphBatch:
        """All candidates in this precision."""
        return self._single if dtype == torch.float32 else self.batch.to(dtype=dtype)

    @cached_property
    def _single(self) -> GraphBatch:
        return self.batch.to(dtype=torch.float32)


@dataclass(frozen=True, eq=False)
class _Looked:
    """Where the pairs of a search are in a table of distances."""

    known: Distances
    candidates: _Candidates
    rows: Tensor  # (P,) int64
    table: Tensor  # (rows, steps) Å

    @classmethod
    def of(cls, known: Distances, candidates: _Candidates) -> _Looked:
        numbers = np.frombuffer(b"".join(kind for kind, _ in candidates.kinds), dtype=np.int64)
        device = candidates.close.device
        rows, table = known.rows(numbers[candidates.atoms]), known.table
        return cls(
            *(known, candidates),
            *(torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in (rows, table)),
        )


def _kind(geometry: Geometry) -> tuple[bytes, bytes]:
    """What two geometries have in common that differ in positions and cell only."""
    return geometry.numbers.astype(np.int64, copy=False).tobytes(), geometry.pbc.tobytes()


def _periodic_part(geometry: Geometry) -> Array:
    """The cell with zeros where it is not periodic."""
    cell: Array = np.where(geometry.pbc[:, None], geometry.cell, 0.0)
    return cell


def _together(positions: list[Array]) -> Array:
    whole = positions[0] if len(positions) == 1 else np.concatenate(positions)  # of none: an error
    return np.ascontiguousarray(whole, dtype=np.float64)


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
