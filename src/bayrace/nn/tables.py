"""Constant tensors, made once per dtype and device, also inside torch.func and torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from types import MethodType, SimpleNamespace
from typing import TypeVar

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., object])
_made = SimpleNamespace()
_names: dict[Hashable, str] = {}
_numbers = count()


def constant_when_compiled(function: Function) -> Function:
    """Have Dynamo call a function while it traces, and keep the result.

    As torch.compiler.assume_constant_result, without importing Dynamo, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Suspend torch.func transforms, tracing and gradients.

    Inside torch.func.grad or vmap new tensors are wrapped for that transform alone, and inside
    torch.export they hold no numbers. Neither must outlive its context; what is made in this one is
    an ordinary tensor.
    """
    untraced = torch._C.DisableTorchFunction()  # torch.export would note down the no_grad
    with temporarily_clear_interpreter_stack(), _disable_current_modes(), untraced, torch.no_grad():
        yield


def inside_transforms() -> bool:
    """Whether torch.func.grad, vmap or another transform is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def constant(
    key: Hashable, like: torch.Tensor, build: Callable[[torch.dtype, torch.device], Value]
) -> Value:
    """The value that `build(dtype, device)` makes for the dtype and device of `like`, kept."""
    full = (key, like.dtype, like.device)
    if isinstance(build, MethodType):  # Dynamo passes on functions and objects, but not methods
        name = _place(full, build.__func__, build.__self__)
    else:
        name = _place(full, build)
    value: Value = getattr(_made, name)
    return value


@constant_when_compiled
def _place(
    full: tuple[Hashable, torch.dtype, torch.device], build: Callable[..., object], *owner: object
) -> str:
    """The attribute of `_made` with this constant, which is there afterwards.

    Dynamo calls this instead of tracing it. It returns a name, because Dynamo of torch 2.13 fails
    on a second tensor from the same function.
    """
    if full not in _names:
        with outside_transforms():
            value = build(*owner, *full[1:])
        name = f"constant{next(_numbers)}"
        setattr(_made, name, value)
        _names[full] = name
    return _names[full]


def compute_properties(value: object) -> None:
    """Compute every cached_property of a value now; Dynamo cannot enter its lock in Python 3.11."""
    for name, member in vars(type(value)).items():
        if isinstance(member, cached_property):
            getattr(value, name)
