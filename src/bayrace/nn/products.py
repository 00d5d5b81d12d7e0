"""The fused product A ⊗ A as torch operators, differentiable to any order.

square(x) = B(x, x), with B symmetric and bilinear; mixed(x, y) = 2 B(x, y), and transposed(g, x) is
the gradient of Σ g · square(x). Every derivative of the three is again one of them. Atoms and
channels are independent, so members of vmap are simply more atoms.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayrace.nn.compiler import build
from bayrace.nn.contraction import SelfProduct, parse_product, square_plain
from bayrace.nn.differentiable import register
from bayrace.nn.kernels import DTYPES, Kernel, ready, resolve
from bayrace.nn.sources import assembled, source_text
from bayrace.nn.tables import constant_when_compiled

_LIBRARY: Any = torch.library.Library("bayrace", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("square(str product, Tensor x) -> Tensor")
_LIBRARY.define("mixed(str product, Tensor x, Tensor y) -> Tensor")
_LIBRARY.define("transposed(str product, Tensor g, Tensor x) -> Tensor")
_square: Any = torch.ops.bayrace.square.default
_mixed: Any = torch.ops.bayrace.mixed.default
_transposed: Any = torch.ops.bayrace.transposed.default


def square(product: SelfProduct, x: Tensor, *, kernel: Kernel = "auto") -> Tensor:
    """Rows of A ⊗ A, from (N, M, C) to (N, rows, C), by the fastest kernel there is."""
    if prepare(product, x.shape[-1], x.dtype, x.device.type, kernel=kernel) == "fused":
        return square_fused(product, x)
    return square_plain(product, x)


@constant_when_compiled
def prepare(
    product: SelfProduct,
    channels: int,
    dtype: torch.dtype,
    device: str = "cpu",
    *,
    kernel: Kernel = "auto",
) -> Kernel:
    """Build what `square` needs ahead of its first call; the kernel that it will take."""
    if not product.rows:
        return "plain"
    return resolve(load, product.key, channels, dtype, device, kernel)


def square_fused(product: SelfProduct, x: Tensor) -> Tensor:
    """From x (N, M, C) to (N, rows, C) by the compiled kernel."""
    result: Tensor = _square(product.key, x)
    return result


@cache
def load(key: str, dtype: torch.dtype, lanes: int) -> dict[str, Any]:
    """The compiled passes of a product by name.

    Raises:
        CompilerError: they cannot be built here.
    """
    library = build(generate(parse_product(key)), {"REAL": DTYPES[dtype], "LANES": str(lanes)})
    passes = {}
    for name, arrays in (("square", 2), ("mixed", 3), ("transposed", 3)):
        passes[name] = getattr(library, name)
        passes[name].restype = None
        passes[name].argtypes = [ctypes.c_long] * 3 + [ctypes.c_void_p] * arrays
    return passes


def generate(product: SelfProduct) -> str:
    """C source of the three passes; REAL and LANES are set when compiling."""
    source = source_text("product.c")
    return written_out(product, source)


def written_out(product: SelfProduct, source: str) -> str:
    """A C source with the sums of the product in the lines marked with @."""
    bodies = {
        "square": _sums(product, lambda a, b: f"x{a} * x{b}", double=False),
        "mixed": _sums(
            product,
            lambda a, b: f"x{a} * y{a}" if a == b else f"(x{a} * y{b} + x{b} * y{a})",
            double=True,
        ),
        "transposed": _transposed_sums(product),
    }
    return assembled(source, bodies, {"INPUTS": product.input_dim, "ROWS": product.rows})


def _vectors(name: str, count: int) -> str:
    return " ".join(f"vec {name}{i} = AT({name} + {i} * channels);" for i in range(count))


def _sums(product: SelfProduct, pair: Any, *, double: bool) -> str:
    """Every row as a sum over pairs of components."""
    loads = [_vectors(name, product.input_dim) for name in ("x", "y")[: 2 if double else 1]]
    rows = []
    for row, terms in enumerate(product.terms):
        factors = ((a, b, c * (2 if double and a == b else 1)) for a, b, c in terms)
        total = " + ".join(f"(real){c!r} * {pair(a, b)}" for a, b, c in factors)
        rows.append(f"PUT(out + {row} * channels, {total});")
    return "\n".join([*loads, *rows])


def _transposed_sums(product: SelfProduct) -> str:
    """Every component as a sum over rows."""
    lines = [_vectors("x", product.input_dim)]
    lines += [f"vec o{a} = {{0}};" for a in range(product.input_dim)]
    for row, terms in enumerate(product.terms):
        lines.append(f"{{ vec g0 = AT(g + {row} * channels);")
        for a, b, c in terms:
            if a == b:
                lines.append(f"o{a} += (real){2 * c!r} * g0 * x{a};")
            else:
                lines.append(f"{{ vec h = (real){c!r} * g0; o{a} += h * x{b}; o{b} += h * x{a}; }}")
        lines.append("}")
    lines += [f"PUT(out + {a} * channels, o{a});" for a in range(product.input_dim)]
    return "\n".join(lines)


def _run(name: str, key: str, inputs: tuple[Tensor, ...]) -> Tensor:
    product, like = parse_product(key), inputs[-1]
    atoms, channels = like.shape[0], like.shape[-1]
    passes, lanes = ready(load, key, like.dtype, channels)
    padding = -channels % lanes
    expected = [product.input_dim] * len(inputs)
    if name == "transposed":
        expected[0] = product.rows
    for value, components in zip(inputs, expected, strict=True):
        if value.shape != (atoms, components, channels) or value.dtype != like.dtype:
            raise ValueError(
                f"an array of shape {tuple(value.shape)} and {value.dtype}: "
                f"the product {key} needs {(atoms, components, channels)} and {like.dtype}"
            )
    if padding:
        inputs = tuple(torch.nn.functional.pad(value, (0, padding)) for value in inputs)
    held = [value.contiguous() for value in inputs]
    components = product.input_dim if name == "transposed" else product.rows
    out = like.new_empty((atoms, components, channels + padding))
    work = atoms * product.rows * channels
    threads = max(1, min(torch.get_num_threads(), work // 200_000))
    pointers = [value.data_ptr() for value in (*held, out)]
    passes[name](threads, atoms, channels + padding, *pointers)
    return out[..., :channels].contiguous() if padding else out


def _square_cpu(key: str, x: Tensor) -> Tensor:
    return _run("square", key, (x,))


def _mixed_cpu(key: str, x: Tensor, y: Tensor) -> Tensor:
    return _run("mixed", key, (x, y))


def _transposed_cpu(key: str, g: Tensor, x: Tensor) -> Tensor:
    return _run("transposed", key, (g, x))


def _rows_fake(key: str, x: Tensor, _y: Tensor | None = None) -> Tensor:
    return x.new_empty((x.shape[0], parse_product(key).rows, x.shape[2]))


def _transposed_fake(_key: str, _g: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...]) -> None:
    ctx.key = inputs[0]
    ctx.save_for_backward(*inputs[1:])


def _square_rule(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
    (x,) = ctx.saved_tensors
    return None, None if g is None else _transposed(ctx.key, g, x)


def _mixed_rule(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
    x, y = ctx.saved_tensors
    if g is None:
        return None, None, None
    _, for_x, for_y = ctx.needs_input_grad
    return (
        None,
        _transposed(ctx.key, g, y) if for_x else None,
        _transposed(ctx.key, g, x) if for_y else None,
    )


def _transposed_rule(ctx: Any, v: Tensor | None) -> tuple[Tensor | None, ...]:
    g, x = ctx.saved_tensors
    if v is None:
        return None, None, None
    _, for_g, for_x = ctx.needs_input_grad
    return (
        None,
        _mixed(ctx.key, x, v) if for_g else None,
        _transposed(ctx.key, g, v) if for_x else None,
    )


def _fold(operator: Any) -> Any:
    """The vmap rule: members are more atoms."""

    def rule(info: Any, in_dims: tuple[Any, ...], key: str, *inputs: Tensor) -> tuple[Any, Any]:
        count = info.batch_size
        moved = [
            value.unsqueeze(0).expand(count, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(inputs, in_dims[1:], strict=True)
        ]
        result = operator(key, *(value.flatten(0, 1) for value in moved))
        return result.unflatten(0, (count, moved[0].shape[1])), 0

    return rule


register(_LIBRARY, "square", _square_cpu, _rows_fake, _save, _square_rule, _fold)
register(_LIBRARY, "mixed", _mixed_cpu, _rows_fake, _save, _mixed_rule, _fold)
register(
    _LIBRARY,
    "transposed",
    _transposed_cpu,
    _transposed_fake,
    _save,
    _transposed_rule,
    _fold,
)
