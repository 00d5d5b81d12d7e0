"""Pairs of a neighbour list that are close now, and the graph that they make, in compiled code."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.nn.compiler import build
from bayrace.nn.kernels import DTYPES, resolve
from bayrace.nn.sources import source_text


class Followed(NamedTuple):
    """Atoms that have moved little since their neighbours were searched."""

    positions: Tensor  # (N, 3) Å, without lattice vectors and centred, in the order of the batch
    square: Tensor  # (P,) Å², float64, squared distances of the pairs
    changed: bool  # whether other pairs are close than before


@dataclass(frozen=True, eq=False)
class Start:
    """Where the atoms of S structures were when their neighbours were searched, float64.

    Atoms are in the order of the files; `rank` has their places in the batch.
    """

    first: Tensor  # (S + 1,) int64, atoms of structure s are first[s] : first[s + 1]
    wrap: Tensor  # (N, 3) Å, whole lattice vectors that are removed from positions
    positions: Tensor  # (N, 3) Å, without them, and centred
    most: Tensor  # (S,) Å², how far an atom may have moved since
    rank: Tensor  # (N,) int64
    ends: Tensor  # (2, P) int64, receiver and sender of each pair in the batch
    offsets: Tensor  # (P, 3) Å, added to x[ends[1]] - x[ends[0]]
    cutoff: float  # Å

    def follow(
        self, positions: NDArray[np.float64], dtype: torch.dtype, close: Tensor
    ) -> Followed | None:
        """Where they are now; None if an atom has gone too far.

        `positions` are contiguous. `close` (P,) bool, which pairs are closer than the cutoff, is
        brought up to date.
        """
        if not _available(self.positions):
            return self._follow(positions, dtype, close)
        at, pairs, ends = torch.empty_like(self.positions), len(self.offsets), self.ends.data_ptr()
        rounded = at if dtype == torch.float64 else torch.empty_like(at, dtype=dtype)
        square = torch.empty(pairs, dtype=torch.float64)
        rest = (self.wrap, self.positions, self.most, self.rank, at, rounded)
        changed = load(DTYPES[dtype], dtype, 0)["update"](
            *(len(self.most), self.first.data_ptr(), positions.ctypes.data),
            *(each.data_ptr() for each in rest),
            *(pairs, ends, ends + self.ends.stride(0) * self.ends.itemsize),
            *(self.offsets.data_ptr(), self.cutoff**2, square.data_ptr(), close.data_ptr()),
        )
        return None if changed < 0 else Followed(rounded, square, bool(changed))

    def _follow(
        self, positions: NDArray[np.float64], dtype: torch.dtype, close: Tensor
    ) -> Followed | None:
        free = torch.from_numpy(positions).to(self.wrap.device) - self.wrap
        here = [each - each.mean(0) for each in torch.split(free, self.first.diff().tolist())]
        local, owner = torch.cat(here), torch.repeat_interleave(self.first.diff())
        moved = (local - self.positions).square().sum(1)
        if not bool((moved <= self.most[owner]).all()):
            return None
        at = torch.empty_like(local).index_copy_(0, self.rank, local)
        square = (at[self.ends[1]] - at[self.ends[0]] + self.offsets).square().sum(1)
        now = square < self.cutoff**2
        changed = not torch.equal(now, close)
        close.copy_(now)
        return Followed(at.to(dtype), square, changed)


def select_pairs(batch: GraphBatch, keep: Tensor) -> GraphBatch:
    """The batch with only the pairs where `keep` (P,) is true.

    Both edges of a pair stay or go together, and their order is kept, so the invariants of
    GraphBatch hold: edges sorted by receiver, reverse and pair consistent.
    """
    if not _available(batch.shifts):
        return _selected(batch, keep)
    edges, pairs, kept = batch.reverse.shape[0], keep.shape[0], int(keep.sum())
    old = [getattr(batch, name).contiguous() for name in _ARRAYS]
    room = batch.pair.new_empty(edges + pairs)
    whole = room.new_empty
    new = (
        *(whole(2, 2 * kept), batch.shifts.new_empty(2 * kept, 3), whole(batch.n_atoms + 1)),
        *(whole(2 * kept), whole(2 * kept), whole(2, kept)),
    )
    held = keep.contiguous()
    load(DTYPES[batch.shifts.dtype], batch.shifts.dtype, 0)["select"](
        *(batch.n_atoms, edges, pairs, held.data_ptr()),
        *(room.data_ptr(), room[edges:].data_ptr()),
        *(each.data_ptr() for each in old),
        *(2 * kept, kept),
        *(each.data_ptr() for each in new),
    )
    arrays: dict[str, Any] = dict(zip(_ARRAYS, new, strict=True))
    return replace(batch, **arrays)


_ARRAYS = ("edges", "shifts", "first_edge", "reverse", "pair", "pair_edges")  # as in pairs.c


def _selected(batch: GraphBatch, keep: Tensor) -> GraphBatch:
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


def _available(like: Tensor) -> bool:
    if like.dtype not in DTYPES:
        return False
    real = DTYPES[like.dtype]
    return resolve(load, real, 1, like.dtype, like.device.type, "auto") == "fused"


@cache
def load(real: str, _dtype: torch.dtype, _lanes: int) -> dict[str, Any]:
    """The compiled functions by name, for shifts of the C type `real`.

    Raises:
        CompilerError: they cannot be built here.
    """
    source = source_text("pairs.c")
    library = build(source, {"REAL": real})
    whole, pointer = ctypes.c_long, ctypes.c_void_p
    library.update.argtypes = [whole, *[pointer] * 8, whole, *[pointer] * 3]
    library.update.argtypes += [ctypes.c_double, pointer, pointer]
    library.update.restype = ctypes.c_int
    library.select.argtypes = [*[whole] * 3, *[pointer] * 9, whole, whole, *[pointer] * 6]
    library.select.restype = None
    return {name: getattr(library, name) for name in ("update", "select")}
