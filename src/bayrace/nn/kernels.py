"""Which implementation an operation takes: compiled C where it can be had, else plain PyTorch."""

from __future__ import annotations

import logging
import os
from functools import cache
from threading import Lock
from typing import Any, Literal, Protocol, get_args

import torch

from bayrace.nn import prebuilt
from bayrace.nn.compiler import CompilerError, find_compiler, vector_bytes

Kernel = Literal["auto", "plain", "fused"]
_KERNELS: tuple[str, ...] = get_args(Kernel)

DTYPES = {torch.float32: "float", torch.float64: "double"}

_log = logging.getLogger(__name__)


class Load(Protocol):
    """Compiles and loads the passes of an operation, or raises CompilerError."""

    def __call__(self, key: str, dtype: torch.dtype, lanes: int, /) -> dict[str, Any]:
        """The passes by name."""
        ...


def kernel_status() -> str:
    """One line on the kernel that `auto` takes, for `bayrace info`."""
    if _from_environment() == "plain":
        return "plain (BAYRACE_KERNEL=plain)"
    try:
        compiler = find_compiler()
    except CompilerError as error:
        if own := prebuilt.vector_bytes():
            return f"fused for the presets (brought along, {8 * own}-bit vectors); else plain"
        return f"plain ({error})"
    threads = "OpenMP" if compiler.threads else "one thread"
    return f"fused ({compiler.command}, {8 * compiler.vector_bytes}-bit vectors, {threads})"


def resolve(
    load: Load, key: str, channels: int, dtype: torch.dtype, device: str, kernel: Kernel
) -> Kernel:
    """`plain` or `fused`, after building the latter; `plain` where the device is no CPU.

    Callers mark themselves with `constant_when_compiled`.
    """
    chosen = chosen_kernel(kernel)
    if chosen == "plain" or device != "cpu":
        return "plain"
    problem = _problem(load, key, channels, dtype)  # type: ignore[arg-type]
    if problem is None:
        return "fused"
    if chosen == "fused":
        raise RuntimeError(f"kernel='fused' is not available: {problem}; or choose kernel='plain'")
    return "plain"


def lanes_for(channels: int, dtype: torch.dtype) -> int:
    """Channels in one vector: the widest of the processor's that divides them, or the narrowest."""
    widest = vector_bytes() // dtype.itemsize
    narrowest = 16 // dtype.itemsize
    lanes = widest
    while lanes > narrowest and channels % lanes:
        lanes //= 2
    return lanes


@cache
def ready(load: Load, key: str, dtype: torch.dtype, channels: int) -> tuple[dict[str, Any], int]:
    """The passes of an operation and how many channels they take at a time, loaded once."""
    lanes = lanes_for(channels, dtype)
    return load(key, dtype, lanes), lanes


def chosen_kernel(kernel: Kernel) -> Kernel:
    """The kernel itself, or what the environment says for `auto`."""
    return _from_environment() if kernel == "auto" else kernel


def _from_environment() -> Kernel:
    try:
        name = os.environ["BAYRACE_KERNEL"]
    except KeyError:  # `get` asks twice, and this is asked many times in a step
        return "auto"
    if name not in _KERNELS:
        raise ValueError(f"BAYRACE_KERNEL={name!r}: choose one of {', '.join(_KERNELS)}")
    return name  # type: ignore[return-value]


@cache
def _problem(load: Load, key: str, channels: int, dtype: torch.dtype) -> str | None:
    """Why the fused kernel cannot be had, logged once; None if it can."""
    if dtype not in DTYPES:
        return f"it computes in float32 or float64, not {dtype}"
    try:
        load(key, dtype, lanes_for(channels, dtype))
    except CompilerError as error:
        _warn_once(str(error))
        return str(error)
    return None


def _warn_once(problem: str) -> None:
    """The first problem; the others, one of each kernel, would be the same."""
    with _warning:
        if not _warned:
            _warned.append(problem)
            _log.warning(
                "compiled kernels are off, plain PyTorch is many times slower: %s", problem
            )


_warned: list[str] = []
_warning = Lock()
