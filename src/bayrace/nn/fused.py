"""The fused convolution as torch operators, differentiable to any order.

Φ(g, x, Y, R) = Σ_n g[n] · out[n] is linear in each of its arguments. `bayrace::convolve` is its
gradient with respect to g, `bayrace::convolve_backward` those with respect to x, Y and R, and
`bayrace::convolve_double` is the gradient of
Φ(g, vx, Y, R) + Φ(g, x, vY, R) + Φ(g, x, Y, vR) with respect to all four. Higher orders are sums of
such terms and need no kernel of their own.

Every operator takes the plan as its key and the graph as four arrays of GraphBatch. Gradients that
are not asked for come back as empty tensors.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import register_fake, register_vmap

from bayrace.nn.codegen import coupling_count, generate
from bayrace.nn.compiler import build, find_compiler
from bayrace.nn.differentiable import differentiable
from bayrace.nn.plan import Plan, parse_plan
from bayrace.types import GraphBatch

_GRAPH = "Tensor first_edge, Tensor edges, Tensor pair, Tensor pair_edges"
_LIBRARY: Any = torch.library.Library("bayrace", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(f"convolve(str plan, Tensor x, Tensor y, Tensor r, {_GRAPH}) -> Tensor")
_LIBRARY.define(
    f"convolve_backward(str plan, Tensor g, Tensor x, Tensor y, Tensor r, {_GRAPH},"
    " bool[3] needed) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "convolve_double(str plan, Tensor g, Tensor x, Tensor y, Tensor r,"
    f" Tensor? vx, Tensor? vy, Tensor? vr, {_GRAPH},"
    " bool[4] needed) -> (Tensor, Tensor, Tensor, Tensor)"
)
_convolve: Any = torch.ops.bayrace.convolve.default
_backward: Any = torch.ops.bayrace.convolve_backward.default
_double: Any = torch.ops.bayrace.convolve_double.default

DTYPES = {torch.float32: "float", torch.float64: "double"}


def convolve_fused(plan: Plan, x: Tensor, y: Tensor, r: Tensor, batch: GraphBatch) -> Tensor:
    """The convolution by the compiled kernel; shapes as in `bayrace.nn.convolution.convolve`."""
    graph = (batch.first_edge, batch.edges, batch.pair, batch.pair_edges)
    result: Tensor = _convolve(plan.key, x, y, r, *graph)
    return result


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
    "double_receiver": (3, 10),
    "forward": (3, 7),
}


def lanes_for(channels: int, dtype: torch.dtype) -> int:
    """Channels in one vector: the widest of the processor's that divides them, or the narrowest."""
    widest = find_compiler().vector_bytes // dtype.itemsize
    narrowest = 16 // dtype.itemsize
    lanes = widest
    while lanes > narrowest and channels % lanes:
        lanes //= 2
    return lanes


class _Call:
    """What the passes share: library, sizes, and arrays made contiguous and padded to LANES."""

    def __init__(
        self, key: str, x: Tensor, y: Tensor, r: Tensor, graph: tuple[Tensor, ...]
    ) -> None:
        self.plan, self.dtype = parse_plan(key), x.dtype
        self.atoms, _, self.channels = x.shape
        lanes = lanes_for(self.channels, x.dtype)
        self.padding = -self.channels % lanes
        self.width = self.channels + self.padding
        self.passes = load(key, x.dtype, lanes)
        self.first, edges, self.pair, self.pair_edges = (index.contiguous() for index in graph)
        self.receiver, self.sender = edges[0], edges[1]
        self.pairs, self.edges = self.pair_edges.shape[1], edges.shape[1]
        self.check("features", x, (self.first.shape[0] - 1, self.plan.input_dim, self.channels))
        self.check("harmonics", y, (self.edges, self.plan.harmonics_dim))
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
        arrays = (self.first, self.sender, self.pair, *inputs, out)
        self.passes[name](self.threads, self.atoms, self.width, *_pointers(arrays))
        return self.narrow(out)

    def by_pair(
        self, name: str, inputs: tuple[Tensor, ...], needed: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        like, plan = inputs[0], self.plan
        shapes = (
            (self.atoms, plan.input_dim, self.width),
            (self.edges, plan.harmonics_dim),
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


def _convolve_cpu(key: str, x: Tensor, y: Tensor, r: Tensor, *graph: Tensor) -> Tensor:
    call = _Call(key, x, y, r, graph)
    return call.by_receiver("forward", (call.wide(x), y.contiguous(), call.wide(r)))


def _backward_cpu(
    key: str, g: Tensor, x: Tensor, y: Tensor, r: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *graph, needed = rest
    call = _Call(key, x, y, r, tuple(graph))
    call.check("gradient", g, (call.atoms, call.plan.rows, call.channels))
    inputs = (call.wide(x), y.contiguous(), call.wide(r), call.wide(g))
    return call.by_pair("backward", inputs, needed)


def _double_cpu(
    key: str, g: Tensor, x: Tensor, y: Tensor, r: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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


def _convolve_fake(key: str, x: Tensor, _y: Tensor, _r: Tensor, *_graph: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], parse_plan(key).rows, x.shape[2]))


def _backward_fake(_key: str, _g: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _like(rest[:3], rest[-1])


def _double_fake(_key: str, *rest: Any) -> tuple[Tensor, ...]:
    return _like(rest[:4], rest[-1])


def _like(values: tuple[Tensor, ...], needed: list[bool]) -> tuple[Tensor, ...]:
    return tuple(
        value.new_empty(value.shape if wanted else (0,))
        for value, wanted in zip(values, needed, strict=True)
    )


def _save_forward(ctx: Any, inputs: tuple[Any, ...]) -> None:
    ctx.key = inputs[0]
    ctx.save_for_backward(*inputs[1:])


def _forward_rule(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
    needed = list(ctx.needs_input_grad[1:4])
    if g is None:
        return (None,) * 8
    x, y, r, *graph = ctx.saved_tensors
    grads = _backward(ctx.key, g, x, y, r, *graph, needed)
    return None, *_wanted(grads, needed), *(None,) * 4


def _save_backward(ctx: Any, inputs: tuple[Any, ...]) -> None:
    ctx.key = inputs[0]
    ctx.save_for_backward(*inputs[1:-1])


def _backward_rule(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
    needed = list(ctx.needs_input_grad[1:5])
    if all(cotangent is None for cotangent in cotangents):
        return (None,) * 10
    g, x, y, r, *graph = ctx.saved_tensors
    grads = _double(ctx.key, g, x, y, r, *cotangents, *graph, needed)
    return None, *_wanted(grads, needed), *(None,) * 5


def _save_double(ctx: Any, inputs: tuple[Any, ...]) -> None:
    ctx.key = inputs[0]
    ctx.save_for_backward(*inputs[1:-1])


def _double_rule(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
    """Third order: nine terms Φ, each with one argument replaced twice, by forward and backward."""
    saved = ctx.saved_tensors
    base, (vx, vy, vr), graph = saved[:4], saved[4:7], saved[7:]
    needed = ctx.needs_input_grad[1:8]
    grads: list[Tensor | None] = [None] * 7  # g, x, y, r, vx, vy, vr

    def accumulate(place: int, value: Tensor) -> None:
        held = grads[place]
        grads[place] = value if held is None else held + value

    for second, tangent in enumerate((vx, vy, vr), start=1):
        for first, cotangent in enumerate(cotangents):
            if tangent is None or cotangent is None or first == second:
                continue
            arguments, places = list(base), [0, 1, 2, 3]
            arguments[first], arguments[second] = cotangent, tangent
            places[first], places[second] = -1, 3 + second
            wanted = [place >= 0 and needed[place] for place in places]
            if wanted[0]:
                accumulate(places[0], _convolve(ctx.key, *arguments[1:], *graph))
            if any(wanted[1:]):
                parts = _backward(ctx.key, *arguments, *graph, wanted[1:])
                for place, part, keep in zip(places[1:], parts, wanted[1:], strict=True):
                    if keep:
                        accumulate(place, part)
    return None, *grads, *(None,) * 5


def _wanted(grads: tuple[Tensor, ...], needed: list[bool]) -> list[Tensor | None]:
    return [grad if wanted else None for grad, wanted in zip(grads, needed, strict=True)]


def _over_members(operator: Any) -> Any:
    """The vmap rule: members share graph and plan and run one after another."""

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        results = [
            operator(
                *(
                    value.select(dim, member) if isinstance(dim, int) else value
                    for value, dim in zip(inputs, in_dims, strict=True)
                )
            )
            for member in range(info.batch_size)
        ]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    return rule


for _name, _kernel, _fake, _setup, _rule in (
    ("convolve", _convolve_cpu, _convolve_fake, _save_forward, _forward_rule),
    ("convolve_backward", _backward_cpu, _backward_fake, _save_backward, _backward_rule),
    ("convolve_double", _double_cpu, _double_fake, _save_double, _double_rule),
):
    _LIBRARY.impl(_name, _kernel, "CPU")
    register_fake(f"bayrace::{_name}", _fake)
    register_vmap(f"bayrace::{_name}", _over_members(getattr(torch.ops.bayrace, _name).default))
    differentiable(_LIBRARY, _name, _setup, _rule)
