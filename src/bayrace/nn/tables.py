"""Constant tensors, made once per dtype and device, also from inside torch.func transforms."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

Value = TypeVar("Value")
_made: dict[Hashable, object] = {}


def constant(
    key: Hashable, like: torch.Tensor, build: Callable[[torch.dtype, torch.device], Value]
) -> Value:
    """The value that `build(dtype, device)` makes for the dtype and device of `like`, kept.

    Inside torch.func.grad or vmap new tensors are wrapped for that transform alone and must not
    be kept; the transforms are therefore suspended while the value is built.
    """
    full = (key, like.dtype, like.device)
    if full not in _made:
        with temporarily_clear_interpreter_stack(), torch.no_grad():
            _made[full] = build(like.dtype, like.device)
    return _made[full]  # type: ignore[return-value]
