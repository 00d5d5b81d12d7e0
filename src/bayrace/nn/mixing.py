"""Linear maps of whole features: every irrep has its matrix, or one for each element, in one call.

Features are flat rows (N, width): irrep after irrep, component after component, channels inside.
A `Mixing` is a list of blocks; block b takes each of its `dim` components from K to C channels,
times a constant. y = mix(x, w), with its transpose and with outer(x, y), the gradient of w, is a
family that is closed under differentiation.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayrace.nn.compiler import build
from bayrace.nn.differentiable import register
from bayrace.nn.kernels import DTYPES, Kernel, ready, resolve
from bayrace.nn.sources import source_text
from bayrace.nn.tables import compute_properties, constant_when_compiled

_LIBRARY: Any = torch.library.Library("bayrace", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("mix(str mixing, Tensor x, Tensor w, SymInt[] counts, bool turned) -> Tensor")
_LIBRARY.define("mix_outer(str mixing, Tensor x, Tensor y, SymInt[] counts) -> Tensor")
_mix: Any = torch.ops.bayrace.mix.default
_outer: Any = torch.ops.bayrace.mix_outer.default


class Block(NamedTuple):
    """One irrep: `dim` components from `before` to `after` channels, times `scale`."""

    dim: int
    before: int
    after: int
    scale: float


@dataclass(frozen=True)
class Mixing:
    """The blocks of a linear map and where their numbers lie."""

    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        compute_properties(self)

    @cached_property
    def before(self) -> int:
        """Width of x."""
        return sum(block.dim * block.before for block in self.blocks)

    @cached_property
    def after(self) -> int:
        """Width of y."""
        return sum(block.dim * block.after for block in self.blocks)

    @cached_property
    def weights(self) -> int:
        """Numbers in the matrices of one kind of atom."""
        return sum(block.before * block.after for block in self.blocks)

    @cached_property
    def key(self) -> str:
        """The mixing as text, for operators that take only tensors and strings."""
        return ";".join(f"{b.dim}*{b.before}>{b.after}*{b.scale!r}" for b in self.blocks)

    @cached_property
    def divisor(self) -> int:
        """The largest power of two that divides all channels."""
        together = 0
        for block in self.blocks:
            together |= block.before | block.after
        return together & -together


@cache
def parse_mixing(key: str) -> Mixing:
    """The mixing whose `key` this is."""
    blocks = []
    for text in key.split(";"):
        left, right = text.split(">")
        dim, before = left.split("*")
        after, scale = right.split("*")
        blocks.append(Block(int(dim), int(before), int(after), float(scale)))
    return Mixing(tuple(blocks))


def mix(
    mixing: Mixing, x: Tensor, w: Tensor, counts: tuple[int, ...], *, kernel: Kernel = "auto"
) -> Tensor:
    """The linear map of every atom.

    Args:
        mixing: the blocks.
        x: (N, mixing.before).
        w: matrices of every kind of atom, one after another, (kinds, mixing.weights).
        counts: atoms of each kind, which follow one another; (N,) if there is one kind.
        kernel: as for `convolve`.

    Returns:
        (N, mixing.after)
    """
    if prepare(mixing, x.dtype, x.device.type, kernel=kernel) == "fused":
        result: Tensor = _mix(mixing.key, x, w, counts, False)
        return result
    return mix_plain(mixing, x, w, counts)


def mix_plain(mixing: Mixing, x: Tensor, w: Tensor, counts: tuple[int, ...]) -> Tensor:
    """The definition in plain PyTorch."""
    widths = [block.dim * block.before for block in mixing.blocks]
    sizes = [block.before * block.after for block in mixing.blocks]
    mixed = []
    for block, part, matrix in zip(
        mixing.blocks, torch.split(x, widths, -1), torch.split(w, sizes, -1), strict=True
    ):
        rows = part.reshape(x.shape[0], block.dim, block.before)
        matrices = matrix.reshape(w.shape[0], block.before, block.after) * block.scale
        pieces = [
            atoms @ one
            for atoms, one in zip(torch.split(rows, list(counts)), matrices.unbind(0), strict=True)
        ]
        mixed.append(torch.cat(pieces).flatten(1))
    return torch.cat(mixed, dim=-1)


@constant_when_compiled
def prepare(
    mixing: Mixing, dtype: torch.dtype, device: str = "cpu", *, kernel: Kernel = "auto"
) -> Kernel:
    """Build what `mix` needs ahead of its first call; the kernel that it will take."""
    if not _fills_vectors(mixing, dtype):
        return "plain"
    return resolve(load, "", mixing.divisor, dtype, device, kernel)


def _fills_vectors(mixing: Mixing, dtype: torch.dtype) -> bool:
    """Whether all channels are whole vectors, at least of the narrowest kind."""
    return mixing.divisor >= 16 // dtype.itemsize


@cache
def load(_key: str, dtype: torch.dtype, lanes: int) -> dict[str, Any]:
    """The compiled passes by name.

    Raises:
        CompilerError: they cannot be built here.
    """
    library = build(source_text("mixing.c"), {"REAL": DTYPES[dtype], "LANES": str(lanes)})
    passes = {}
    for name, whole, arrays in (("mix", 6, 6), ("outer", 6, 6), ("turn", 3, 3)):
        passes[name] = getattr(library, name)
        passes[name].restype = None
        passes[name].argtypes = [ctypes.c_long] * whole + [ctypes.c_void_p] * arrays
    return passes


class _Tables(NamedTuple):
    """A mixing as the passes read it."""

    fields: Any  # dim, before, after, starts in x, y and w of every block
    scales: Any
    turned: Any  # the fields of the transposed map


@cache
def _tables(key: str) -> _Tables:
    blocks = parse_mixing(key).blocks
    starts = [
        [0, *accumulate(width)]
        for width in (
            [block.dim * block.before for block in blocks],
            [block.dim * block.after for block in blocks],
            [block.before * block.after for block in blocks],
        )
    ]
    fields, turned = [], []
    for block, x, y, w in zip(blocks, *starts, strict=False):
        fields += [block.dim, block.before, block.after, x, y, w]
        turned += [block.dim, block.after, block.before, y, x, w]
    scales = [block.scale for block in blocks]
    return _Tables(
        (ctypes.c_long * len(fields))(*fields),
        (ctypes.c_double * len(scales))(*scales),
        (ctypes.c_long * len(turned))(*turned),
    )


class _Call:
    """What the passes share."""

    def __init__(self, key: str, like: Tensor, counts: list[int]) -> None:
        self.mixing, self.tables = parse_mixing(key), _tables(key)
        if not _fills_vectors(self.mixing, like.dtype):
            raise ValueError(
                f"the mixing {key} in {like.dtype}: channels must be multiples of "
                f"{16 // like.dtype.itemsize}; use `mix`, which then computes in plain PyTorch"
            )
        self.kinds, self.atoms = len(counts), sum(counts)
        self.offsets = (ctypes.c_long * (self.kinds + 1))(0, *accumulate(counts))
        divisor = self.mixing.divisor
        self.passes, _ = ready(load, "", like.dtype, divisor)
        self.like = like
        work = self.atoms * sum(b.dim * b.before * b.after for b in self.mixing.blocks)
        self.threads = max(1, min(torch.get_num_threads(), work // 500_000))

    def check(self, name: str, value: Tensor, rows: int, width: int) -> Tensor:
        """Reading past the end of an array would be a crash, or worse, a number."""
        if value.shape != (rows, width) or value.dtype != self.like.dtype:
            raise ValueError(
                f"{name} of shape {tuple(value.shape)} and {value.dtype}: "
                f"the mixing {self.mixing.key} needs {(rows, width)} and {self.like.dtype}"
            )
        return value.contiguous()

    def run(self, name: str, widths: tuple[int, int], fields: Any, *arrays: Tensor) -> None:
        sizes = (self.threads, self.kinds, len(self.mixing.blocks), *widths, self.mixing.weights)
        pointers = (value.data_ptr() for value in arrays)
        self.passes[name](*sizes, self.offsets, fields, self.tables.scales, *pointers)


def _mix_cpu(key: str, x: Tensor, w: Tensor, counts: list[int], turned: bool) -> Tensor:
    call = _Call(key, x, counts)
    mixing, tables = call.mixing, call.tables
    w = call.check("weights", w, call.kinds, mixing.weights)
    widths, fields = (mixing.before, mixing.after), tables.fields
    if turned:
        widths, fields = widths[::-1], tables.turned
        flipped = torch.empty_like(w)
        blocks = len(mixing.blocks)
        sizes = (call.kinds, blocks, mixing.weights)
        call.passes["turn"](*sizes, tables.fields, w.data_ptr(), flipped.data_ptr())
        w = flipped
    x = call.check("features", x, call.atoms, widths[0])
    y = x.new_empty((call.atoms, widths[1]))
    call.run("mix", widths, fields, x, w, y)
    return y


def _outer_cpu(key: str, x: Tensor, y: Tensor, counts: list[int]) -> Tensor:
    call = _Call(key, x, counts)
    widths = (call.mixing.before, call.mixing.after)
    x = call.check("features", x, call.atoms, widths[0])
    y = call.check("gradient", y, call.atoms, widths[1])
    w = x.new_empty((call.kinds, call.mixing.weights))
    call.run("outer", widths, call.tables.fields, x, y, w)
    return w


def _mix_fake(key: str, x: Tensor, _w: Tensor, _counts: Any, turned: bool) -> Tensor:
    mixing = parse_mixing(key)
    return x.new_empty((x.shape[0], mixing.before if turned else mixing.after))


def _outer_fake(key: str, x: Tensor, _y: Tensor, counts: Any) -> Tensor:
    return x.new_empty((len(counts), parse_mixing(key).weights))


def _save_mix(ctx: Any, inputs: tuple[Any, ...]) -> None:
    ctx.key, x, w, ctx.counts, ctx.turned = inputs
    ctx.save_for_backward(x, w)


def _mix_rule(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    _, for_x, for_w, _, _ = ctx.needs_input_grad
    if g is None:
        return (None,) * 5
    pair = (g, x) if ctx.turned else (x, g)
    return (
        None,
        _mix(ctx.key, g, w, ctx.counts, not ctx.turned) if for_x else None,
        _outer(ctx.key, *pair, ctx.counts) if for_w else None,
        None,
        None,
    )


def _save_outer(ctx: Any, inputs: tuple[Any, ...]) -> None:
    ctx.key, x, y, ctx.counts = inputs
    ctx.save_for_backward(x, y)


def _outer_rule(ctx: Any, v: Tensor | None) -> tuple[Tensor | None, ...]:
    x, y = ctx.saved_tensors
    _, for_x, for_y, _ = ctx.needs_input_grad
    if v is None:
        return (None,) * 4
    return (
        None,
        _mix(ctx.key, y, v, ctx.counts, True) if for_x else None,
        _mix(ctx.key, x, v, ctx.counts, False) if for_y else None,
        None,
    )


register(_LIBRARY, "mix", _mix_cpu, _mix_fake, _save_mix, _mix_rule)
register(_LIBRARY, "mix_outer", _outer_cpu, _outer_fake, _save_outer, _outer_rule)
