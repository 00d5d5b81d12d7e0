"""Squared lengths |(x - c) A|² of the vectors of many atoms: distances, and variances of a Gaussian.

Turning A by an orthogonal matrix from the right changes no length, so it is made triangular once,
which saves half of the work; compiled code sums in double precision whatever the dtype of x.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from bayrace.nn.compiler import build
from bayrace.nn.kernels import DTYPES, ready, resolve
from bayrace.nn.tables import inside_transforms

_CHANNELS = 64  # of any multiple: matrices are padded to whole vectors
_PANEL = 3  # vectors, as in lengths.c
_MOST = 4096  # numbers of a vector: eight of them must fit the stack


@dataclass(frozen=True, eq=False)
class Lengths:
    """The squared length of (x - c) A as a function of x."""

    matrix: Tensor  # A, (D, K) float64
    centre: Tensor | None = None  # c, (D,) float64; None is zero

    def __call__(self, x: Tensor) -> Tensor:
        """Of vectors (N, D): (N,) float64; not differentiable in compiled code."""
        if not self._compiled(x):
            moved = x.double() if self.centre is None else x.double() - self.centre
            return (moved @ self.matrix).square().sum(-1)
        held = x.detach().contiguous()
        out = torch.empty(len(held), dtype=torch.float64)
        panels, size = self._panels
        functions, _ = ready(load, DTYPES[x.dtype], torch.float64, _CHANNELS)
        centre = 0 if self.centre is None else self.centre.data_ptr()
        functions["lengths"](
            *(len(held), held.shape[1], size, held.data_ptr(), centre),
            *(panels.data_ptr(), out.data_ptr()),
        )
        return out

    def _compiled(self, x: Tensor) -> bool:
        if torch.compiler.is_compiling() or inside_transforms() or x.dtype not in DTYPES:
            return False
        if (torch.is_grad_enabled() and x.requires_grad) or max(self.matrix.shape) > _MOST:
            return False
        key = DTYPES[x.dtype]
        return resolve(load, key, _CHANNELS, torch.float64, x.device.type, "auto") == "fused"

    @cached_property
    def _panels(self) -> tuple[Tensor, int]:
        """The triangle as lengths.c wants it, and the padded size of a vector."""
        _, lanes = ready(load, "double", torch.float64, _CHANNELS)
        width, (before, after) = _PANEL * lanes, self.matrix.shape
        size = -(-max(before, after) // width) * width
        triangle = self.matrix.new_zeros(size, size)
        lower = torch.linalg.qr(self.matrix.mT).R.mT  # (D, min(D, K)): A Aᵀ is the same
        triangle[:before, : lower.shape[1]] = lower
        panels = [triangle[first:, first : first + width] for first in range(0, size, width)]
        return torch.cat([panel.flatten() for panel in panels]), size


@cache
def load(real: str, dtype: torch.dtype, lanes: int) -> dict[str, Any]:
    """The compiled function for vectors of the C type `real`.

    Raises:
        CompilerError: it cannot be built here.
    """
    assert dtype == torch.float64  # of the sums
    source = resources.files("bayrace.nn").joinpath("lengths.c").read_text("utf-8")
    function = build(source, {"REAL": real, "LANES": str(lanes)}).lengths
    function.restype = None
    function.argtypes = [*[ctypes.c_long] * 3, *[ctypes.c_void_p] * 4]
    return {"lengths": function}
