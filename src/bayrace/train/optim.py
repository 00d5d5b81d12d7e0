"""Optimisers on plain dictionaries of tensors: AMSGrad (Reddi 2018), AdamW (Loshchilov 2019), EMA.

IVON, which has a file of its own, goes through the same three functions: init, trial and step.
Nothing is hidden: the state of an optimiser is a dictionary of tensors that a checkpoint can hold.
Updates are in place and use torch's fused and multi-tensor kernels, so that a hundred small tensors
cost a fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayrace.train import ivon
from bayrace.train.ivon import IvonSettings
from bayrace.types import Params

OptimiserState = dict[str, Tensor]
"""`count` (steps taken, int64 on the CPU) and `mean/…`, `square/…`, `maximum/…` per parameter."""


@dataclass(frozen=True)
class OptimiserSettings:
    """Which Adam: `amsgrad` adds weight decay to the gradient, `adamw` decays the weights."""

    name: Literal["amsgrad", "adamw"]
    lr: float  # the peak; a schedule scales it
    weight_decay: float
    betas: tuple[float, float]
    eps: float

    def __post_init__(self) -> None:
        if self.name not in ("amsgrad", "adamw"):
            raise ValueError(f"optimiser {self.name!r} is unknown; use 'amsgrad' or 'adamw'")
        if not self.lr > 0:
            raise ValueError(f"lr={self.lr}: the learning rate must be positive, for example 0.01")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                f"betas={self.betas}: both must be in [0, 1), for example (0.9, 0.999)"
            )
        if self.weight_decay < 0 or self.eps < 0:
            raise ValueError(
                f"weight_decay={self.weight_decay}, eps={self.eps}: neither may be negative"
            )


Optimiser = OptimiserSettings | IvonSettings


def init(settings: Optimiser, params: Params) -> OptimiserState:
    """The state before the first step: zero moments of the parameters' shapes."""
    if isinstance(settings, IvonSettings):
        return ivon.init(settings, params)
    slots = ("mean", "square", "maximum") if settings.name == "amsgrad" else ("mean", "square")
    state = {
        f"{slot}/{name}": torch.zeros_like(value, requires_grad=False)
        for slot in slots
        for name, value in params.items()
    }
    state["count"] = torch.zeros((), dtype=torch.int64)
    return state


def trial(
    settings: Optimiser, params: Params, state: OptimiserState, *, seed: int, step: int
) -> tuple[Params, Params | None]:
    """Where to take the gradient of a step, and for IVON the noise that `step` wants to see."""
    if isinstance(settings, IvonSettings):
        return ivon.perturb(settings, params, state, seed=seed, step=step)
    return params, None


@torch.no_grad()
def step(
    settings: Optimiser,
    params: Params,
    grads: Sequence[Tensor],
    state: OptimiserState,
    *,
    lr: float,
    noise: Params | None = None,
) -> None:
    """Update `params` and `state` in place; `grads` follow the order of `params`."""
    if isinstance(settings, IvonSettings):
        assert noise is not None
        ivon.update(settings, params, grads, state, noise, lr=lr)
        return
    count = int(state["count"].add_(1))
    values = list(params.values())
    amsgrad = settings.name == "amsgrad"
    update = torch._fused_adam_ if amsgrad else torch._fused_adamw_
    update(
        values,
        list(grads),
        _slot(state, "mean", params),
        _slot(state, "square", params),
        _slot(state, "maximum", params) if amsgrad else [],
        [torch.tensor(float(count), device=values[0].device)] * len(values),
        lr=lr,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        weight_decay=settings.weight_decay,
        eps=settings.eps,
        amsgrad=amsgrad,
        maximize=False,
    )


@torch.no_grad()
def global_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, a scalar tensor; nan or inf if any entry is."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
    return norm


@torch.no_grad()
def clip(grads: Sequence[Tensor], *, maximum: float) -> Tensor:
    """Scale the gradients in place so that their global norm is at most `maximum`.

    Returns the norm before clipping, a scalar tensor.
    """
    norm = global_norm(grads)
    torch._foreach_mul_(list(grads), (maximum / (norm + 1e-6)).clamp(max=1.0))
    return norm


@torch.no_grad()
def update_average(average: Params, params: Params, *, decay: float, count: int) -> None:
    """Exponential moving average in place, after `count` earlier updates.

    The decay starts low, min(decay, (1 + count) / (10 + count)), so that the first weights are
    forgotten quickly.
    """
    warm = min(decay, (1 + count) / (10 + count))
    torch._foreach_lerp_(list(average.values()), list(params.values()), 1 - warm)


def _slot(state: OptimiserState, slot: str, params: Params) -> list[Tensor]:
    return [state[f"{slot}/{name}"] for name in params]
