"""Steps of Muon for matrices in compiled code; `bayrace.train.muon` has the formulas."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayrace.nn.compiler import build
from bayrace.nn.kernels import DTYPES, Kernel, ready, resolve
from bayrace.nn.sources import source_text

_CHANNELS = 64  # of any multiple: matrices are padded to whole vectors


class Stack(NamedTuple):
    """Parameters that are matrices (rows, columns), one or more each, and what belongs to them."""

    params: Sequence[Tensor]
    gradients: Sequence[Tensor]  # as many
    momentum: Tensor  # (B, rows, columns), in their order


class Rates(NamedTuple):
    """Numbers of a step."""

    memory: float  # of the momentum
    scale: float  # of an update, its root mean square
    shrink: float  # of the parameters before it
    tiny: float
    cushion: float


def available(like: Tensor, kernel: Kernel = "auto") -> bool:
    """Whether there is compiled code for parameters like this one."""
    if like.dtype not in DTYPES:
        return False
    return resolve(load, "", _CHANNELS, like.dtype, like.device.type, kernel) == "fused"


def move(
    stacks: Sequence[Stack], rates: Rates, polynomials: Sequence[tuple[float, float, float]]
) -> None:
    """Move parameters and momenta in place; they are contiguous, on the CPU, of one dtype."""
    table: list[int] = []
    held = []
    for stack in stacks:
        rows, columns = stack.momentum.shape[-2:]
        momentum, stride = stack.momentum.data_ptr(), stack.params[0].nbytes
        count = stack.params[0].numel() // (rows * columns)
        for param, gradient in zip(stack.params, stack.gradients, strict=True):
            slope = gradient if gradient.is_contiguous() else gradient.contiguous()
            held.append(slope)
            table += (param.data_ptr(), slope.data_ptr(), momentum, count, rows, columns)
            momentum += stride
    if not table:
        return
    params = np.array(table, dtype=np.int64)
    numbers = np.array([*rates, *(value for each in polynomials for value in each)])
    functions, _ = ready(load, "", stacks[0].momentum.dtype, _CHANNELS)
    failed = functions["step"](
        len(held),
        params.ctypes.data,
        len(polynomials),
        numbers.ctypes.data,
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError("no memory for the steps of Muon; end other programs")


@cache
def load(_: str, dtype: torch.dtype, lanes: int) -> dict[str, Any]:
    """The compiled step.

    Raises:
        CompilerError: it cannot be built here.
    """
    source = source_text("newton_schulz.c")
    defines = {"REAL": DTYPES[dtype], "LANES": str(lanes)}
    step = build(source, defines).step
    pointer = ctypes.c_void_p
    step.argtypes = [ctypes.c_long, pointer, ctypes.c_long, pointer, ctypes.c_long]
    step.restype = ctypes.c_int
    return {"step": step}
