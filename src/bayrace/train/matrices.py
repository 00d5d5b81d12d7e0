"""The matrices among the parameters, those of one shape stacked: what Muon and SOAP work on.

A parameter of two or more dimensions whose last two have at least SMALLEST entries is a matrix, or
several: leading dimensions count them. Where these are many themselves (the 32 × 32 × 32 numbers of
a product, say), the parameter is one tall matrix instead, which costs a fraction of a stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayrace.core.outputs import Params

SMALLEST = 8


def parted(params: Params) -> tuple[dict[str, list[str]], Params]:
    """Names of the matrices by their shape, such as "32x32", and all other parameters.

    In the order of the names: what an optimiser remembers of a stack must not depend on another.
    """
    stacks: dict[str, list[str]] = {}
    others: Params = {}
    for name, value in sorted(params.items()):
        if value.ndim >= 2 and min(value.shape[-2:]) >= SMALLEST:
            stacks.setdefault("x".join(map(str, value.shape)), []).append(name)
        else:
            others[name] = value
    return stacks, others


def stacked(names: Sequence[str], values: Mapping[str, Tensor]) -> Tensor:
    """The matrices of these parameters, which have one shape, (B, m, n)."""
    return together([values[name] for name in names])


def together(values: Sequence[Tensor]) -> Tensor:
    """The matrices of parameters of one shape, (B, m, n)."""
    joined = torch.stack(list(values))
    if joined.ndim == 4 and joined.shape[1] >= SMALLEST:
        return joined.flatten(1, 2)
    return joined.flatten(0, -3)


@torch.no_grad()
def move(params: Sequence[Tensor], steps: Tensor, *, shrink: float) -> None:
    """Multiply parameters of one shape by `shrink` and subtract their `steps`, in place."""
    values = list(params)
    if shrink != 1:
        torch._foreach_mul_(values, shrink)
    parts = steps.reshape(len(values), *values[0].shape).unbind()
    torch._foreach_sub_(values, list(parts))
