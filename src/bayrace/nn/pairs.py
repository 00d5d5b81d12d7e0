"""Pairs of a neighbour list that are close now, and the graph that they make, in compiled code."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

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
    _known: ClassVar[_Known | None] = None

    def follow(
        self, positions: NDArray[np.float64], dtype: torch.dtype, close: Tensor
    ) -> Followed | None:
        """Where they are now; None if an atom has gone too far.

        `positions` are contiguous. `close` (P,) bool, which pairs are closer than the cutoff, is
        brought up to date. The squared distances hold until the next call.
        """
        known = self._known
        if known is None or known.close is not close or known.dtype is not dtype:
            if not _available(self.positions):
                return self._follow(positions, dtype, close)
            known = vars(self)["_known"] = _Known.of(self, dtype, close)
        rounded = torch.empty_like(self.positions, dtype=dtype)
        changed = known.update(known.given, positions.ctypes.data, rounded.data_ptr())
        return None if changed < 0 else Followed(rounded, known.square, bool(changed))

    def __getstate__(self) -> dict[str, Any]:
        """All but addresses, which mean nothing in another process."""
        return {name: value for name, value in vars(self).items() if name != "_known"}

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


class _Given(ctypes.Structure):
    """`known` of pairs.c."""

    _fields_: ClassVar = [
        *((name, ctypes.c_long) for name in ("structures", "pairs")),
        ("limit", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("first", "wrap", "start", "most", "rank")),
        *((name, ctypes.c_void_p) for name in ("receiver", "sender", "offset")),
        *((name, ctypes.c_void_p) for name in ("at", "square", "close")),
    ]


@dataclass(frozen=True, eq=False)
class _Known:
    """A start as C has it, and what must live as long."""

    update: Any  # of pairs.c
    given: Any  # reference to it
    dtype: torch.dtype  # of positions
    close: Tensor
    square: Tensor  # (P,) Å²
    held: tuple[Tensor, ...]

    @classmethod
    def of(cls, start: Start, dtype: torch.dtype, close: Tensor) -> _Known:
        at, square = torch.empty_like(start.positions), start.offsets.new_empty(len(start.offsets))
        ends, offsets = start.ends.contiguous(), start.offsets.contiguous()
        as_given = (start.first, start.wrap, start.positions, start.most, start.rank)
        arrays = [each.contiguous() for each in as_given]
        rest = (ends[0], ends[1], offsets, at, square, close)
        addresses = (each.data_ptr() for each in (*arrays, *rest))
        given = _Given(len(start.most), len(square), start.cutoff**2, *addresses)
        update = load(DTYPES[dtype], dtype, 0)["update"]
        return cls(update, ctypes.byref(given), dtype, close, square, (*arrays, *rest))


class Widest(NamedTuple):
    """The pair with the widest gap."""

    place: int
    gap: float  # as in the table
    distance: float  # Å


def widest(
    close: Tensor, square: Tensor, rows: Tensor, table: Tensor, resolution: float
) -> Widest | None:
    """Of pairs (P,) that are close, the first one with the widest gap; None if none is close.

    A pair's gap is in its row of `table`, whose entries are `resolution` apart in Å. `square` are
    the squares of their distances.
    """
    if not _available(square):
        return _widest(close, square, rows, table, resolution)
    found = (ctypes.c_double * 2)()
    place = load("double", torch.float64, 0)["widest"](
        *(len(square), close.data_ptr(), square.data_ptr(), rows.data_ptr()),
        *(table.data_ptr(), table.shape[1], resolution, found),
    )
    return None if place < 0 else Widest(place, *found)


def _widest(
    close: Tensor, square: Tensor, rows: Tensor, table: Tensor, resolution: float
) -> Widest | None:
    places = close.nonzero().squeeze(1)
    if not len(places):
        return None
    lengths = square[places].sqrt()
    steps = (lengths / resolution).long().clamp(max=table.shape[1] - 1)
    gaps = table[rows[places], steps].numpy(force=True)
    first = int(gaps.argmax())
    return Widest(int(places[first]), float(gaps[first]), float(lengths[first]))


def select_pairs(batch: GraphBatch, keep: Tensor) -> GraphBatch:
    """The batch with only the pairs where `keep` (P,) is true.

    Both edges of a pair stay or go together, and their order is kept, so the invariants of
    GraphBatch hold: edges sorted by receiver, reverse and pair consistent.
    """
    if not _available(batch.shifts):
        return _selected(batch, keep)
    edges, pairs, kept = batch.reverse.shape[0], keep.shape[0], int(keep.count_nonzero())
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
    result = object.__new__(GraphBatch)  # `replace` takes longer than all the rest
    vars(result).update(vars(batch), **dict(zip(_ARRAYS, new, strict=True)))
    return result


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
    library.update.argtypes, library.update.restype = [pointer] * 3, ctypes.c_int
    library.widest.argtypes = [whole, *[pointer] * 4, whole, ctypes.c_double, pointer]
    library.widest.restype = whole
    library.select.argtypes = [*[whole] * 3, *[pointer] * 9, whole, whole, *[pointer] * 6]
    library.select.restype = None
    return {name: getattr(library, name) for name in ("update", "widest", "select")}
