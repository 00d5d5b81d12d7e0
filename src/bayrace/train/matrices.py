"""The matrices among the parameters, those of one shape stacked: what Muon and SOAP work on.

A parameter of two or more dimensions whose last two have at least SMALLEST entries is a matrix, or
several: leading dimensions count them. Where these are many themselves (the 32 × 32 × 32 numbers of
a product, say), the parameter is one tall matrix instead, which costs a fraction of a stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.train import adam
from bayrace.train.adam import AdamSettings

SMALLEST = 8


def parted(params: Params) -> tuple[dict[str, list[str]], Params]:
    """Names of the matrices by their shape, such as "32x32", and all other parameters.

    In the order of the names: what an optimiser remembers of a stack must not depend on another.
    """
    stacks: dict[str, list[str]] = {}
    others: Params = {}
    for name in sorted(params):
        shape = _of_matrices(params[name].shape)
        if shape is None:
            others[name] = params[name]
        else:
            stacks.setdefault(shape, []).append(name)
    return stacks, others


@cache
def _of_matrices(shape: tuple[int, ...]) -> str | None:
    """The name of a shape; None where it is no matrix."""
    return "x".join(map(str, shape)) if min((0, 0, *shape)[-2:]) >= SMALLEST else None


def stacked(names: Sequence[str], values: Mapping[str, Tensor]) -> Tensor:
    """The matrices of these parameters, which have one shape, (B, m, n)."""
    return together([values[name] for name in names])


def together(values: Sequence[Tensor]) -> Tensor:
    """The matrices of parameters of one shape, (B, m, n)."""
    joined = torch.stack(list(values))
    if joined.ndim == 4 and joined.shape[1] >= SMALLEST:
        return joined.flatten(1, 2)
    return joined.flatten(0, -3)


def move_others(
    settings: AdamSettings,
    params: Params,
    grads: Sequence[Tensor],
    state: dict[str, Tensor],
    *,
    lr: float,
) -> tuple[dict[str, list[str]], Params]:
    """A step of Adam for all but the matrices; names of those by shape, and gradients by name.

    `grads` follow the order of `params`; parameters and state move in place.
    """
    stacks, others = parted(params)
    slopes = dict(zip(params, grads, strict=True))
    adam.update(settings, others, [slopes[name] for name in others], state, lr=lr)
    return stacks, slopes


@torch.no_grad()
def move(params: Sequence[Tensor], steps: Tensor, *, shrink: float) -> None:
    """Multiply parameters of one shape by `shrink` and subtract their `steps`, in place."""
    values = list(params)
    if shrink != 1:
        torch._foreach_mul_(values, shrink)
    parts = steps.reshape(len(values), *values[0].shape).unbind()
    torch._foreach_sub_(values, list(parts))
