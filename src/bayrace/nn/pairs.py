"""Pairs of a neighbour list that are close now, and the graph that they make, in compiled code."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.nn.compiler import build
from bayrace.nn.kernels import DTYPES, resolve
from bayrace.nn.sources import source_text


def measure(
    positions: Tensor, ends: Tensor, offsets: Tensor, cutoff: float, before: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Squared distances (P,) of pairs, float64, and which of them are below the cutoff, (P,).

    `positions` (N, 3) and `offsets` (P, 3), which are added to x[ends[1]] - x[ends[0]], are float64
    and contiguous. The latter result is `before` itself, that of the last call, if it is the same.
    """
    if not _available(positions):
        vectors = positions[ends[1]] - positions[ends[0]] + offsets
        square = vectors.square().sum(1)
        close = square < cutoff**2
        return square, before if before is not None and torch.equal(before, close) else close
    square = torch.empty(len(offsets), dtype=torch.float64)
    close = torch.zeros(len(offsets), dtype=torch.bool) if before is None else before.clone()
    changed = load("double", torch.float64, 0)["measure"](
        *(len(offsets), positions.data_ptr(), ends.data_ptr(), ends[1].data_ptr()),
        *(offsets.data_ptr(), cutoff**2, square.data_ptr(), close.data_ptr()),
    )
    return square, close if changed or before is None else before


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
    library.measure.argtypes = [whole, *[pointer] * 4, ctypes.c_double, pointer, pointer]
    library.measure.restype = ctypes.c_int
    library.select.argtypes = [*[whole] * 3, *[pointer] * 9, whole, whole, *[pointer] * 6]
    library.select.restype = None
    return {"measure": library.measure, "select": library.select}
