"""Covariances of forces and their quadratic forms in compiled code, for training and prediction.

`bayrace.nn.covariance` has the definitions. Here are values and first derivatives of the 3 × 3
matrices exp(kI + Q) by their eigenvalues; inside torch.func, on a GPU, and for derivatives of
higher order the definitions are taken. `bayrace.nn.spreads` says what covariances mean.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayrace.nn.compiler import build
from bayrace.nn.kernels import DTYPES, resolve
from bayrace.nn.sources import source_text
from bayrace.nn.tables import inside_transforms

Limits = tuple[float, float, float]
"""Range of k, and the length that the numbers of Q approach."""
Definition = Callable[[Tensor, Tensor], Tensor]


def available(numbers: Tensor) -> bool:
    """Whether the compiled functions take these numbers, (..., 6)."""
    if torch.compiler.is_compiling() or inside_transforms() or numbers.dtype not in DTYPES:
        return False
    return resolve(load, "", 1, numbers.dtype, numbers.device.type, "auto") == "fused"


def exponential(numbers: Tensor, limits: Limits) -> Tensor:
    """Covariances (..., 3, 3); not differentiable."""
    held = numbers.detach().contiguous()
    out = held.new_empty((*held.shape[:-1], 3, 3))
    count = held.numel() // 6
    load("", held.dtype, 0)["exponential"](count, *limits, held.data_ptr(), out.data_ptr())
    return out


def quadratic(numbers: Tensor, errors: Tensor, limits: Limits, definition: Definition) -> Tensor:
    """The form errorᵀ Σ⁻¹ error, (...,); `definition` is differentiated where this cannot be."""
    result: Tensor = _quadratic(numbers, errors, limits, definition)
    return result


class _Quadratic(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, numbers: Tensor, errors: Tensor, limits: Limits, definition: Definition
    ) -> Tensor:
        held = [numbers.contiguous(), errors.to(numbers.dtype).contiguous()]
        values = held[0].new_empty(numbers.shape[:-1])
        slopes = [torch.empty_like(each) for each in held]
        arrays = (each.data_ptr() for each in (*held, values, *slopes))
        load("", numbers.dtype, 0)["quadratic"](values.numel(), *limits, *arrays)
        ctx.save_for_backward(numbers, errors, *slopes)
        ctx.definition = definition
        return values

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        numbers, errors, by_numbers, by_errors = ctx.saved_tensors
        if not torch.is_grad_enabled():
            column = g.unsqueeze(-1)
            return column * by_numbers, column * by_errors, None, None
        with torch.enable_grad():
            value = ctx.definition(numbers, errors)
            wanted = [each for each in (numbers, errors) if each.requires_grad]
            slopes = torch.autograd.grad(value, wanted, g, create_graph=True)
        found = dict(zip(map(id, wanted), slopes, strict=True))
        return found.get(id(numbers)), found.get(id(errors)), None, None


_quadratic: Any = _Quadratic.apply


@cache
def load(_key: str, dtype: torch.dtype, _lanes: int) -> dict[str, Any]:
    """The compiled functions by name.

    Raises:
        CompilerError: they cannot be built here.
    """
    source = source_text("gaussian.c")
    library = build(source, {"REAL": DTYPES[dtype]})
    functions = {}
    for name, arrays in (("exponential", 2), ("quadratic", 5)):
        functions[name] = getattr(library, name)
        functions[name].restype = None
        numbers = [ctypes.c_long, *[ctypes.c_double] * 3]
        functions[name].argtypes = numbers + [ctypes.c_void_p] * arrays
    real, pointer = ctypes.c_double, ctypes.c_void_p
    for name, given in (
        ("spreads", [pointer] * 5),
        ("assess", [pointer, real, real, ctypes.c_long, *[pointer] * 5]),
    ):
        functions[name] = getattr(library, name)
        functions[name].restype = None
        functions[name].argtypes = [ctypes.c_long, *given]
    functions["assess"].restype = real
    return functions
