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

from typing import Any

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.nn.differentiable import register
from bayrace.nn.gpu import backward_gpu, convolve_gpu, double_gpu
from bayrace.nn.passes import backward_cpu, convolve_cpu, double_cpu
from bayrace.nn.plan import Plan, parse_plan

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


def convolve_fused(plan: Plan, x: Tensor, y: Tensor, r: Tensor, batch: GraphBatch) -> Tensor:
    """The convolution by the compiled kernel; shapes as in `bayrace.nn.convolution.convolve`."""
    graph = (batch.first_edge, batch.edges, batch.pair, batch.pair_edges)
    result: Tensor = _convolve(plan.key, x, y, r, *graph)
    return result


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


register(_LIBRARY, "convolve", convolve_cpu, _convolve_fake, _save_forward, _forward_rule)
register(
    _LIBRARY, "convolve_backward", backward_cpu, _backward_fake, _save_backward, _backward_rule
)
register(_LIBRARY, "convolve_double", double_cpu, _double_fake, _save_double, _double_rule)
for _name, _kernel in (
    ("convolve", convolve_gpu),
    ("convolve_backward", backward_gpu),
    ("convolve_double", double_gpu),
):
    _LIBRARY.impl(_name, _kernel, "CUDA")
