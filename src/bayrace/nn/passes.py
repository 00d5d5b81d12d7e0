"""The compiled passes of the fused convolution on CPU tensors.

The operators of `bayrace.nn.fused` end here: arrays are checked, made contiguous and, where the
channels do not fill vectors, padded; then the pass is called through ctypes.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayrace.nn.codegen import coupling_count, generate
from bayrace.nn.compiler import build
from bayrace.nn.kernels import DTYPES, ready
from bayrace.nn.plan import parse_plan


@cache
def load(key: str, dtype: torch.dtype, lanes: int) -> dict[str, Any]:
    """The compiled passes of a plan by name.

    Raises:
        CompilerError: they cannot be built here.
    """
    source = generate(parse_plan(key))
    defines = {"REAL": DTYPES[dtype], "LANES": str(lanes)}

    def one(name: str) -> Any:
        function = getattr(build(source, defines | {f"PASS_{name}": "1"}), name)
        whole, arrays = _ARGUMENTS[name]
        function.restype = None
        function.argtypes = [ctypes.c_long] * whole + [ctypes.c_void_p] * arrays
        return function

    with ThreadPoolExecutor() as pool:
        return dict(zip(_ARGUMENTS, pool.map(one, _ARGUMENTS), strict=True))


_ARGUMENTS = {  # sizes, and arrays
    "double_pairs": (4, 14),
    "backward": (4, 11),
    "double_receiver": (3, 11),
    "forward": (3, 8),
}


class _Call:
    """What the passes share: library, sizes, and arrays made contiguous and padded to LANES."""

    def __init__(
        self, key: str, x: Tensor, y: Tensor, r: Tensor, graph: tuple[Tensor, ...]
    ) -> None:
        self.plan, self.dtype = parse_plan(key), x.dtype
        self.atoms, _, self.channels = x.shape
        self.passes, lanes = ready(load, key, x.dtype, self.channels)
        self.padding = -self.channels % lanes
        self.width = self.channels + self.padding
        self.first, edges, self.pair, self.pair_edges = (index.contiguous() for index in graph)
        self.receiver, self.sender = edges[0], edges[1]
        self.pairs, self.edges = self.pair_edges.shape[1], edges.shape[1]
        self.check("features", x, (self.first.shape[0] - 1, self.plan.input_dim, self.channels))
        self.check("harmonics", y, (self.pairs, self.plan.harmonics_dim))
        self.check("radial", r, (self.pairs, len(self.plan.paths), self.channels))
        work = self.edges * _couplings(key) * self.width
        self.threads = max(1, min(torch.get_num_threads(), work // 200_000))

    def check(self, name: str, value: Tensor, shape: tuple[int, ...]) -> None:
        """Reading past the end of an array would be a crash, or worse, a number."""
        if value.shape != shape or value.dtype != self.dtype:
            raise ValueError(
                f"{name} of shape {tuple(value.shape)} and {value.dtype}: "
                f"the plan {self.plan.key} and this graph need {shape} and {self.dtype}"
            )

    def wide(self, value: Tensor) -> Tensor:
        """An array whose last dimension is channels."""
        if self.padding:
            value = torch.nn.functional.pad(value, (0, self.padding))
        return value.contiguous()

    def narrow(self, value: Tensor) -> Tensor:
        return value[..., : self.channels].contiguous() if self.padding else value

    def by_receiver(self, name: str, inputs: tuple[Tensor, ...]) -> Tensor:
        out = inputs[0].new_empty((self.atoms, self.plan.rows, self.width))
        arrays = (self.first, self.sender, self.pair, self.pair_edges, *inputs, out)
        self.passes[name](self.threads, self.atoms, self.width, *_pointers(arrays))
        return self.narrow(out)

    def by_pair(
        self, name: str, inputs: tuple[Tensor, ...], needed: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        like, plan = inputs[0], self.plan
        shapes = (
            (self.atoms, plan.input_dim, self.width),
            (self.pairs, plan.harmonics_dim),
            (self.pairs, len(plan.paths), self.width),
        )
        gx, gy, gr = (
            like.new_empty(shape) if wanted else None
            for shape, wanted in zip(shapes, needed, strict=True)
        )
        spare = None if gx is None else like.new_empty((self.threads - 1, *shapes[0]))
        arrays = (self.receiver, self.sender, self.pair_edges, *inputs, gx, spare, gy, gr)
        sizes = (self.threads, self.atoms, self.pairs, self.width)
        self.passes[name](*sizes, *_pointers(arrays))
        nothing = like.new_empty(0)
        return (
            nothing if gx is None else self.narrow(gx),
            nothing if gy is None else gy,
            nothing if gr is None else self.narrow(gr),
        )


@cache
def _couplings(key: str) -> int:
    return coupling_count(parse_plan(key))


def _pointers(arrays: tuple[Tensor | None, ...]) -> list[int | None]:
    return [None if array is None else array.data_ptr() for array in arrays]


def convolve_cpu(key: str, x: Tensor, y: Tensor, r: Tensor, *graph: Tensor) -> Tensor:
    """`bayrace::convolve`: the messages summed at each receiver."""
    call = _Call(key, x, y, r, graph)
    return call.by_receiver("forward", (call.wide(x), y.contiguous(), call.wide(r)))


def backward_cpu(
    key: str, g: Tensor, x: Tensor, y: Tensor, r: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """`bayrace::convolve_backward`: gradients of x, Y and R, empty where not needed."""
    *graph, needed = rest
    call = _Call(key, x, y, r, tuple(graph))
    call.check("gradient", g, (call.atoms, call.plan.rows, call.channels))
    inputs = (call.wide(x), y.contiguous(), call.wide(r), call.wide(g))
    return call.by_pair("backward", inputs, needed)


def double_cpu(
    key: str, g: Tensor, x: Tensor, y: Tensor, r: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`bayrace::convolve_double`: gradients of g, x, Y and R, empty where not needed."""
    *cotangents, first, edges, pair, pair_edges, needed = rest
    call = _Call(key, x, y, r, (first, edges, pair, pair_edges))
    vx, vy, vr = (
        torch.zeros_like(value) if cotangent is None else cotangent
        for value, cotangent in zip((x, y, r), cotangents, strict=True)
    )
    values = (call.wide(x), y.contiguous(), call.wide(r))
    tangents = (call.wide(vx), vy.contiguous(), call.wide(vr))
    og = g.new_empty(0)
    if needed[0]:
        og = call.by_receiver("double_receiver", (*values, *tangents))
    gx = gy = gr = g.new_empty(0)
    if any(needed[1:]):
        inputs = (*values, call.wide(g), *tangents)
        gx, gy, gr = call.by_pair("double_pairs", inputs, needed[1:])
    return og, gx, gy, gr
