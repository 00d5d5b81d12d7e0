"""Adam in two forms: AMSGrad (Reddi 2018) and AdamW (Loshchilov 2019), by torch's fused kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayrace.core.outputs import Params


@dataclass(frozen=True)
class AdamSettings:
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


def init(settings: AdamSettings, params: Params) -> dict[str, Tensor]:
    """`count` (steps taken, int64 on the CPU) and `mean/…`, `square/…`, `maximum/…`, all zero."""
    slots = ("mean", "square", "maximum") if settings.name == "amsgrad" else ("mean", "square")
    state = {
        f"{slot}/{name}": torch.zeros_like(value, requires_grad=False)
        for slot in slots
        for name, value in params.items()
    }
    state["count"] = torch.zeros((), dtype=torch.int64)
    return state


@torch.no_grad()
def update(
    settings: AdamSettings,
    params: Params,
    grads: Sequence[Tensor],
    state: dict[str, Tensor],
    *,
    lr: float,
) -> None:
    """Move parameters and state in place; `grads` follow the order of `params`."""
    count = int(state["count"].add_(1))
    values = list(params.values())
    if not values:
        return
    amsgrad = settings.name == "amsgrad"
    kernel = torch._fused_adam_ if amsgrad else torch._fused_adamw_
    kernel(
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


def _slot(state: dict[str, Tensor], slot: str, params: Params) -> list[Tensor]:
    return [state[f"{slot}/{name}"] for name in params]
