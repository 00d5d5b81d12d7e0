"""Constant tensors, made once per dtype and device, also from inside torch.func transforms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

Value = TypeVar("Value")
_made: dict[Hashable, object] = {}


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Suspend torch.func transforms and gradients.

    Inside torch.func.grad or vmap new tensors are wrapped for that transform alone and must not
    outlive it; what is made in this context is an ordinary tensor.
    """
    with temporarily_clear_interpreter_stack(), torch.no_grad():
        yield


def inside_transforms() -> bool:
    """Whether torch.func.grad, vmap or another transform is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def constant(
    key: Hashable, like: torch.Tensor, build: Callable[[torch.dtype, torch.device], Value]
) -> Value:
    """The value that `build(dtype, device)` makes for the dtype and device of `like`, kept."""
    full = (key, like.dtype, like.device)
    if full not in _made:
        with outside_transforms():
            _made[full] = build(like.dtype, like.device)
    return _made[full]  # type: ignore[return-value]
