"""Radial functions as cubic splines: one table of coefficients, read by every pair.

A function is given by its values at `intervals` + 1 equally spaced knots from 0 to the cutoff. The
spline is even about 0 and meets 0 at the cutoff with two continuous derivatives. Reading it costs
four rows per pair, whatever network made the values, and the forces are its exact derivatives.

spline(d, c) = Σ_k w_k(d) c_k is linear in the coefficients c. With its adjoint and with
slope(d, c, g) = Σ g · spline(d, c), and each of them for derivatives of the weights w, the family
is closed under differentiation.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayrace.nn.compiler import build
from bayrace.nn.differentiable import register
from bayrace.nn.kernels import DTYPES, Kernel, resolve
from bayrace.nn.sources import source_text
from bayrace.nn.tables import constant, constant_when_compiled

_WHERE = "Tensor d, Tensor? base, int intervals, float spacing, int order"
_LIBRARY: Any = torch.library.Library("bayrace", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(f"spline(Tensor table, {_WHERE}) -> Tensor")
_LIBRARY.define(f"spline_slope(Tensor table, Tensor g, {_WHERE}) -> Tensor")
_LIBRARY.define(f"spline_adjoint(Tensor g, {_WHERE}, int rows) -> Tensor")
_spline: Any = torch.ops.bayrace.spline.default
_slope: Any = torch.ops.bayrace.spline_slope.default
_adjoint: Any = torch.ops.bayrace.spline_adjoint.default


def spline(
    table: Tensor,
    distance: Tensor,
    *,
    intervals: int,
    cutoff: float,
    base: Tensor | None = None,
    kernel: Kernel = "auto",
) -> Tensor:
    """Values of the splines at every distance; 0 from the cutoff on.

    Args:
        table: coefficients, (rows, W), of one set of W functions or of several one after another.
        distance: (P,).
        intervals: of each set, which has `intervals` + 3 rows.
        cutoff: the end of the last interval, in the unit of `distance`.
        base: first row of the set that each pair reads, (P,); the first set if None.
        kernel: as for `convolve`.

    Returns:
        (P, W)
    """
    spacing = cutoff / intervals
    if prepare(table.dtype, table.device.type, kernel=kernel) == "fused":
        values: Tensor = _spline(table, distance, base, intervals, spacing, 0)
        return values
    return spline_plain(table, distance, base, intervals, spacing)


@constant_when_compiled
def prepare(dtype: torch.dtype, device: str = "cpu", *, kernel: Kernel = "auto") -> Kernel:
    """Build what `spline` needs ahead of its first call; the kernel that it will take."""
    return resolve(load, "", 1, dtype, device, kernel)


def spline_plain(
    table: Tensor, distance: Tensor, base: Tensor | None, intervals: int, spacing: float
) -> Tensor:
    """The definition in plain PyTorch."""
    u = distance / spacing
    inside = u < intervals
    interval = u.detach().floor().clamp(0, intervals - 1)
    t = u - interval
    s = 1 - t
    weights = torch.stack(
        (s**3 / 6, (t * t * (3 * t - 6) + 4) / 6, (s * s * (3 * s - 6) + 4) / 6, t**3 / 6), dim=-1
    )
    weights = torch.where(inside.unsqueeze(-1), weights, torch.zeros_like(weights))
    first = interval.long() if base is None else interval.long() + base
    rows = first.unsqueeze(-1) + torch.arange(4, device=first.device)
    return torch.einsum("pk,pkw->pw", weights, table[rows])


def coefficients(intervals: int, like: Tensor, *, first: int = 0) -> Tensor:
    """The matrix (intervals + 3, intervals + 1) from values at the knots to coefficients.

    The last three coefficients are 0, which is what lets the spline end at the cutoff with two
    continuous derivatives. A function that does so itself loses nothing: those three are then of
    the order of the error, (1/intervals)⁴.

    Below the interval `first`, counted from 0, the cubic of that interval goes on.
    """
    return constant(
        ("spline", intervals, first),
        like,
        lambda dtype, device: _solve(intervals, first).to(device, dtype),
    )


def _solve(intervals: int, first: int) -> Tensor:
    n = intervals
    system = np.zeros((n + 3, n + 3))
    for knot in range(n + 1):
        system[knot, knot : knot + 3] = 1 / 6, 4 / 6, 1 / 6
    system[n + 1, [0, 2]] = 1, -1  # even about 0
    system[n + 2, [n, n + 2]] = 1, -1  # flat at the cutoff
    inverse = np.linalg.inv(system)[:, : n + 1]
    inverse[n:] = 0
    for row in reversed(range(first)):  # fourth differences of a cubic's coefficients are 0
        inverse[row] = np.array([4, -6, 4, -1]) @ inverse[row + 1 : row + 5]
    return torch.from_numpy(np.ascontiguousarray(inverse))


@cache
def load(_key: str, dtype: torch.dtype, _lanes: int) -> dict[str, Any]:
    """The compiled passes by name; they depend on the dtype only.

    Raises:
        CompilerError: they cannot be built here.
    """
    source = source_text("spline.c")
    library = build(source, {"REAL": DTYPES[dtype]})
    sizes = [ctypes.c_long] * 5 + [ctypes.c_double]
    arrays = {"spline": [0] * 4, "slope": [0] * 5, "adjoint": [0, 0, 0, 1, 0, 0]}
    passes = {}
    for name, whole in arrays.items():
        passes[name] = getattr(library, name)
        passes[name].restype = None
        kinds = [ctypes.c_long if number else ctypes.c_void_p for number in whole]
        passes[name].argtypes = sizes + kinds
    return passes


class _Call:
    """What the passes share: their checked and contiguous arrays."""

    def __init__(self, like: Tensor, width: int, where: tuple[Any, ...]) -> None:
        d, base, intervals, spacing, order = where
        if d.dtype != like.dtype or d.ndim != 1:
            raise ValueError(
                f"distances {tuple(d.shape)} of {d.dtype}: a table of {like.dtype} needs a vector"
                " of its dtype"
            )
        if base is not None and (base.shape != d.shape or base.dtype != torch.int64):
            raise ValueError(
                f"first rows {tuple(base.shape)} of {base.dtype}: {len(d)} distances need one each,"
                " of torch.int64"
            )
        self.like, self.d = like, d.contiguous()
        self.base = None if base is None else base.contiguous()
        work = d.shape[0] * width
        self.threads = max(1, min(torch.get_num_threads(), work // 100_000))
        self.sizes = (self.threads, d.shape[0], width, intervals, order, 1 / spacing)
        self.passes = load("", like.dtype, 0)

    def run(self, name: str, *arrays: Tensor | int) -> None:
        where = (self.d.data_ptr(), None if self.base is None else self.base.data_ptr())
        rest = (value.data_ptr() if isinstance(value, Tensor) else value for value in arrays)
        self.passes[name](*self.sizes, *where, *rest)


def _spline_cpu(table: Tensor, *where: Any) -> Tensor:
    _check_rows(table.shape[0], where)
    call, table = _Call(table, table.shape[1], where), table.contiguous()
    values = table.new_empty((call.d.shape[0], table.shape[1]))
    call.run("spline", table, values)
    return values


def _slope_cpu(table: Tensor, g: Tensor, *where: Any) -> Tensor:
    _check_rows(table.shape[0], where)
    call, table, g = _Call(table, table.shape[1], where), table.contiguous(), g.contiguous()
    if g.shape != (call.d.shape[0], table.shape[1]) or g.dtype != table.dtype:
        raise ValueError(f"a gradient of shape {tuple(g.shape)}: it must match the values")
    result = table.new_empty(call.d.shape[0])
    call.run("slope", table, g, result)
    return result


def _adjoint_cpu(g: Tensor, *where_rows: Any) -> Tensor:
    *where, rows = where_rows
    _check_rows(rows, tuple(where))
    call, g = _Call(g, g.shape[1], tuple(where)), g.contiguous()
    if g.shape[0] != call.d.shape[0]:
        raise ValueError(f"a gradient of shape {tuple(g.shape)}: it must match the values")
    result = g.new_empty((rows, g.shape[1]))
    spare = g.new_empty((call.threads - 1, rows, g.shape[1]))
    call.run("adjoint", g, rows, result, spare)
    return result


def _check_rows(rows: int, where: tuple[Any, ...]) -> None:
    """Reading past the end of a table would be a crash, or worse, a number."""
    _, base, intervals, _, _ = where
    first, last = 0, 0
    if base is not None and base.numel():
        first, last = (int(end) for end in torch.aminmax(base))
    if first < 0 or last + intervals + 3 > rows:
        raise ValueError(
            f"a spline table of {rows} rows: rows {first} to {last + intervals + 2} are read"
        )


def _values_fake(table: Tensor, d: Tensor, *_rest: Any) -> Tensor:
    return table.new_empty((d.shape[0], table.shape[1]))


def _slope_fake(_table: Tensor, _g: Tensor, d: Tensor, *_rest: Any) -> Tensor:
    return torch.empty_like(d, memory_format=torch.contiguous_format)


def _adjoint_fake(g: Tensor, *where_rows: Any) -> Tensor:
    return g.new_empty((where_rows[-1], g.shape[1]))


def _save_spline(ctx: Any, inputs: tuple[Any, ...]) -> None:
    table, d, base, *ctx.where = inputs
    ctx.save_for_backward(table, d, base)


def _spline_rule(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
    table, d, base = ctx.saved_tensors
    intervals, spacing, order = ctx.where
    if g is None:
        return (None,) * 6
    place = (d, base, intervals, spacing)
    return (
        _adjoint(g, *place, order, table.shape[0]) if ctx.needs_input_grad[0] else None,
        _slope(table, g, *place, order + 1) if ctx.needs_input_grad[1] else None,
        *(None,) * 4,
    )


def _save_slope(ctx: Any, inputs: tuple[Any, ...]) -> None:
    table, g, d, base, *ctx.where = inputs
    ctx.save_for_backward(table, g, d, base)


def _slope_rule(ctx: Any, v: Tensor | None) -> tuple[Tensor | None, ...]:
    table, g, d, base = ctx.saved_tensors
    intervals, spacing, order = ctx.where
    if v is None:
        return (None,) * 7
    place, column = (d, base, intervals, spacing), v.unsqueeze(-1)
    for_table, for_g, for_d = ctx.needs_input_grad[:3]
    return (
        _adjoint(g * column, *place, order, table.shape[0]) if for_table else None,
        _spline(table, *place, order) * column if for_g else None,
        _slope(table, g, *place, order + 1) * v if for_d else None,
        *(None,) * 4,
    )


def _save_adjoint(ctx: Any, inputs: tuple[Any, ...]) -> None:
    g, d, base, *ctx.where = inputs
    ctx.save_for_backward(g, d, base)


def _adjoint_rule(ctx: Any, v: Tensor | None) -> tuple[Tensor | None, ...]:
    g, d, base = ctx.saved_tensors
    intervals, spacing, order, _ = ctx.where
    if v is None:
        return (None,) * 7
    place = (d, base, intervals, spacing)
    return (
        _spline(v, *place, order) if ctx.needs_input_grad[0] else None,
        _slope(v, g, *place, order + 1) if ctx.needs_input_grad[1] else None,
        *(None,) * 5,
    )


register(_LIBRARY, "spline", _spline_cpu, _values_fake, _save_spline, _spline_rule)
register(_LIBRARY, "spline_slope", _slope_cpu, _slope_fake, _save_slope, _slope_rule)
register(_LIBRARY, "spline_adjoint", _adjoint_cpu, _adjoint_fake, _save_adjoint, _adjoint_rule)
