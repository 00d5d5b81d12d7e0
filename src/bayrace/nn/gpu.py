"""The fused convolution on GPUs: Triton kernels behind the operators of `bayrace.nn.fused`.

We have no GPU: their results are tested in Triton's interpreter, and that they compile for one. So
`auto` keeps to plain PyTorch on GPUs, and BAYRACE_KERNEL=fused takes these. No step waits for the
device. Triton comes with PyTorch for CUDA.
"""

from __future__ import annotations

import linecache
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from bayrace.nn.gpu_source import generate
from bayrace.nn.kernels import DTYPES
from bayrace.nn.plan import Plan, parse_plan

_WIDEST = 64  # channels that a program has at a time


def problem(dtype: torch.dtype) -> str | None:
    """Why these kernels cannot be had; None if they can."""
    if dtype not in DTYPES:
        return f"it computes in float32 or float64, not {dtype}"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed; it comes with PyTorch for CUDA"
    return None


@cache
def kernels(key: str) -> SimpleNamespace:
    """The kernels of a plan, compiled by Triton when they are first called."""
    import triton
    import triton.language as tl

    source = generate(parse_plan(key))
    name = f"<bayrace convolution {key}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"triton": triton, "tl": tl, "__name__": name}
    exec(compile(source, name, "exec"), scope)  # noqa: S102 - written by ourselves, above
    return SimpleNamespace(
        **{each: scope[each] for each in ("by_receiver", "by_sender", "by_pair")}
    )


class _Launch:
    """What all kernels of a call share: sizes, and arrays made contiguous."""

    def __init__(self, key: str, channels: int, graph: tuple[Tensor, ...]) -> None:
        self.plan: Plan = parse_plan(key)
        self.kernels, self.channels = kernels(key), channels
        self.first, edges, self.pair, self.pair_edges = (index.contiguous() for index in graph)
        self.receiver, self.sender = edges[0], edges[1]
        self.atoms, self.pairs = self.first.shape[0] - 1, self.pair_edges.shape[1]
        block = 1 << (channels - 1).bit_length()
        self.how = {"BLOCK": min(block, _WIDEST), "num_warps": max(1, min(block, _WIDEST) // 32)}

    def by_receiver(self, x: Tensor, y: Tensor, r: Tensor) -> Tensor:
        """∂Φ/∂g."""
        return self._by_atom(self.kernels.by_receiver, (x, y, r), self.plan.rows)

    def by_sender(self, g: Tensor, y: Tensor, r: Tensor) -> Tensor:
        """∂Φ/∂x."""
        return self._by_atom(self.kernels.by_sender, (g, y, r), self.plan.input_dim)

    def by_pair(self, g: Tensor, x: Tensor, y: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """∂Φ/∂Y and ∂Φ/∂R."""
        gy, gr = torch.zeros_like(y), torch.zeros_like(r)
        if self.pairs:
            arrays = (self.receiver, self.sender, self.pair_edges, g, x, y, r, gy, gr)
            self.kernels.by_pair[(self.pairs,)](*arrays, self.pairs, self.channels, **self.how)
        return gy, gr

    def _by_atom(self, kernel: Any, inputs: tuple[Tensor, ...], rows: int) -> Tensor:
        out = inputs[0].new_zeros((self.atoms, rows, self.channels))
        if self.pairs:
            grid = (self.atoms, -(-self.channels // self.how["BLOCK"]))
            arrays = (self.first, self.sender, self.pair, self.pair_edges, *inputs, out)
            kernel[grid](*arrays, self.channels, **self.how)
        return out


def convolve_gpu(key: str, x: Tensor, y: Tensor, r: Tensor, *graph: Tensor) -> Tensor:
    """`bayrace::convolve`: the messages summed at each receiver."""
    x, y, r = (value.contiguous() for value in (x, y, r))
    return _Launch(key, x.shape[-1], graph).by_receiver(x, y, r)


def backward_gpu(
    key: str, g: Tensor, x: Tensor, y: Tensor, r: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """`bayrace::convolve_backward`: gradients of x, Y and R, empty where not needed."""
    *graph, needed = rest
    launch = _Launch(key, x.shape[-1], tuple(graph))
    g, x, y, r = (value.contiguous() for value in (g, x, y, r))
    nothing = g.new_empty(0)
    gx = launch.by_sender(g, y, r) if needed[0] else nothing
    gy, gr = launch.by_pair(g, x, y, r) if needed[1] or needed[2] else (nothing, nothing)
    return gx, gy if needed[1] else nothing, gr if needed[2] else nothing


def double_gpu(
    key: str, g: Tensor, x: Tensor, y: Tensor, r: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`bayrace::convolve_double`: gradients of g, x, Y and R, empty where not needed.

    They are sums of first derivatives of Φ in which one argument is replaced by its tangent.
    """
    vx, vy, vr, *graph, needed = rest
    values = (g, x, y, r)
    sums = [
        torch.zeros_like(v) if n else v.new_empty(0) for v, n in zip(values, needed, strict=True)
    ]
    for place, tangent in enumerate((vx, vy, vr), start=1):
        if tangent is None:
            continue
        arguments = [*values[:place], tangent, *values[place + 1 :]]
        free = [wanted and each != place for each, wanted in enumerate(needed)]
        if free[0]:
            sums[0] += convolve_gpu(key, *arguments[1:], *graph)
        if any(free[1:]):
            parts = backward_gpu(key, *arguments, *graph, free[1:])
            for each in (1, 2, 3):
                if free[each]:
                    sums[each] += parts[each - 1]
    og, gx, gy, gr = sums
    return og, gx, gy, gr
