"""Squared lengths |(x - c) A|² of many vectors: distances, and variances of a Gaussian.

Turning A by an orthogonal matrix from the right changes no length, so it is made triangular once,
which saves half of the work; compiled code sums in double precision whatever the dtype of x.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from bayrace.nn.compiler import build
from bayrace.nn.kernels import DTYPES, ready, resolve
from bayrace.nn.sources import source_text
from bayrace.nn.tables import inside_transforms

CHANNELS = 64  # of any multiple: matrices are padded to whole vectors
_PANEL = 3  # vectors, as in lengths.c
_MOST = 4096  # numbers of a vector: eight of them must fit the stack


@dataclass(frozen=True, eq=False)
class Lengths:
    """The squared length of (x - c) A as a function of x, for several kinds of x."""

    matrices: Tensor  # A, (Z, D, K) float64
    centres: Tensor | None = None  # c, (Z, D) float64, contiguous; None is zero

    def __call__(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Of vectors (N, D), of which `counts` (Z,) are of each kind in turn: (N,) float64.

        Not differentiable.
        """
        held = x.detach().contiguous()
        counts = (held.shape[0],) if counts is None else counts
        if not self.compiled(held):
            return self._plain(held, counts)
        out = torch.empty(held.shape[0], dtype=torch.float64)
        panels, size = self.panels
        centres = None if self.centres is None else self.centres.data_ptr()
        functions, _ = ready(load, DTYPES[x.dtype], torch.float64, CHANNELS)
        functions["lengths"](
            *(len(counts), first_of(counts), held.shape[1], size),
            *(held.data_ptr(), centres, panels.data_ptr(), out.data_ptr()),
        )
        return out

    def _plain(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        parts = []
        for kind, each in enumerate(torch.split(x.double(), list(counts))):
            moved = each if self.centres is None else each - self.centres[kind]
            parts.append((moved @ self.matrices[kind]).square().sum(-1))
        return torch.cat(parts)

    def compiled(self, x: Tensor) -> bool:
        """Whether compiled code takes these vectors."""
        if torch.compiler.is_compiling() or inside_transforms() or x.dtype not in DTYPES:
            return False
        if max(self.matrices.shape[1:]) > _MOST:
            return False
        key = DTYPES[x.dtype]
        return resolve(load, key, CHANNELS, torch.float64, x.device.type, "auto") == "fused"

    @cached_property
    def panels(self) -> tuple[Tensor, int]:
        """The triangles as lengths.c wants them, and the padded size of a vector."""
        _, lanes = ready(load, "double", torch.float64, CHANNELS)
        width, (kinds, before, after) = _PANEL * lanes, self.matrices.shape
        size = -(-max(before, after) // width) * width
        triangle = self.matrices.new_zeros(kinds, size, size)
        lower = torch.linalg.qr(self.matrices.mT).R.mT  # (Z, D, K or D): A Aᵀ is the same
        triangle[:, :before, : lower.shape[2]] = lower
        panels = [triangle[:, first:, first : first + width] for first in range(0, size, width)]
        return torch.cat([panel.flatten(1) for panel in panels], dim=1), size


def first_of(counts: Sequence[int]) -> Any:
    """Where each kind starts, and the end, as C has it."""
    return (ctypes.c_long * (len(counts) + 1))(0, *accumulate(counts))


@cache
def load(real: str, dtype: torch.dtype, lanes: int) -> dict[str, Any]:
    """The compiled functions for vectors of the C type `real`.

    Raises:
        CompilerError: it cannot be built here.
    """
    assert dtype == torch.float64  # of the sums
    source = source_text("lengths.c")
    library = build(source, {"REAL": real, "LANES": str(lanes)})
    whole: Any = ctypes.c_long
    pointer: Any = ctypes.c_void_p
    library.lengths.argtypes = [whole, pointer, whole, whole, *[pointer] * 4]
    library.grow.argtypes = [
        *(whole, pointer, whole, pointer, whole, pointer, pointer, whole, pointer),
        *(whole, pointer, pointer, *[ctypes.c_double] * 4, *[pointer] * 5),
    ]
    library.lengths.restype = library.grow.restype = None
    return {"lengths": library.lengths, "grow": library.grow}
