"""SOAP (Vyas 2024): Adam in the eigenbasis of the gradient's covariance, for matrices.

Shampoo's preconditioner L^{-1/4} G R^{-1/4}, with L and R moving averages of G Gᵀ and Gᵀ G, is
diagonal in the eigenbases of L and R. SOAP runs Adam there: it rotates the gradient, lets Adam
rescale single entries, and rotates the step back. The bases follow L and R by one power iteration
and a QR every few steps. A side longer than `LONGEST` keeps its own basis. What is no matrix is
left to Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.train import adam
from bayrace.train.adam import AdamSettings
from bayrace.train.matrices import move, move_others, parted, stacked

LONGEST = 128  # rows or columns of a side with a basis of its own
EVERY = 10  # steps between two turns of the bases
_SIDES = ("left", "right")


@dataclass(frozen=True)
class SoapSettings:
    """SOAP for matrices, Adam with decoupled weight decay for all other parameters."""

    adam: AdamSettings  # its numbers are those of the rotated Adam too
    memory: float  # of the covariances
    name: Literal["soap"] = field(default="soap", init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.memory < 1:
            raise ValueError(f"memory={self.memory}: must be in [0, 1), for example 0.95")

    @property
    def lr(self) -> float:
        """The peak; a schedule scales it."""
        return self.adam.lr


def init(settings: SoapSettings, params: Params) -> dict[str, Tensor]:
    """Moments, covariances and bases of the matrices by shape; Adam's state of all others."""
    stacks, others = parted(params)
    state = adam.init(settings.adam, others)
    for shape, names in stacks.items():
        stack = stacked(names, params).detach()
        state[f"momentum/{shape}"] = torch.zeros_like(stack)
        state[f"rotated_square/{shape}"] = torch.zeros_like(stack)
        for side, size in zip(_SIDES, stack.shape[-2:], strict=True):
            if size <= LONGEST:
                state[f"{side}/{shape}"] = stack.new_zeros(len(stack), size, size)
                state[f"{side}_basis/{shape}"] = stack.new_zeros(len(stack), size, size)
    return state


@torch.no_grad()
def update(
    settings: SoapSettings,
    params: Params,
    grads: Sequence[Tensor],
    state: dict[str, Tensor],
    *,
    lr: float,
) -> None:
    """Move parameters and state in place; `grads` follow the order of `params`."""
    stacks, slopes = move_others(settings.adam, params, grads, state, lr=lr)
    count = int(state["count"])
    for turn, (shape, names) in enumerate(stacks.items()):
        slope = stacked(names, slopes)
        learn = 1 - settings.memory if count > 1 else 1.0
        for side in _sides(state, shape):
            product = slope @ slope.mT if side == "left" else slope.mT @ slope
            state[f"{side}/{shape}"].lerp_(product, learn)
        if count == 1:  # in its own bases the first gradient is diagonal: the rest would be noise
            _first_bases(state, shape)
            continue
        step = _rotated_adam(settings.adam, state, shape, slope, count - 1)
        move(
            [params[name] for name in names],
            step.mul_(lr),
            shrink=1 - lr * settings.adam.weight_decay,
        )
        if (count + turn) % EVERY == 0:  # not all shapes in the same step
            _follow(state, shape)


def _rotated_adam(
    settings: AdamSettings, state: dict[str, Tensor], shape: str, slope: Tensor, count: int
) -> Tensor:
    """The step of Adam in the bases, rotated back, in units of the learning rate."""
    beta1, beta2 = settings.betas
    mean, square = state[f"momentum/{shape}"], state[f"rotated_square/{shape}"]
    mean.lerp_(slope, 1 - beta1)
    rotated = _rotate(state, shape, slope)
    square.mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
    scale = square.div(1 - beta2**count).sqrt_().add_(settings.eps).mul_(1 - beta1**count)
    return _rotate(state, shape, _rotate(state, shape, mean) / scale, back=True)


def _sides(state: dict[str, Tensor], shape: str) -> list[str]:
    return [side for side in _SIDES if f"{side}/{shape}" in state]


def _rotate(state: dict[str, Tensor], shape: str, value: Tensor, *, back: bool = False) -> Tensor:
    for side in _sides(state, shape):
        basis = state[f"{side}_basis/{shape}"]
        if side == "left":
            value = (basis if back else basis.mT) @ value
        else:
            value = value @ (basis.mT if back else basis)
    return value


def _first_bases(state: dict[str, Tensor], shape: str) -> None:
    for side in _sides(state, shape):
        vectors = torch.linalg.eigh(state[f"{side}/{shape}"].double()).eigenvectors
        state[f"{side}_basis/{shape}"].copy_(vectors)


def _follow(state: dict[str, Tensor], shape: str) -> None:
    """One step of the power iteration towards the eigenvectors of the covariances."""
    for side in _sides(state, shape):
        basis = state[f"{side}_basis/{shape}"]
        basis.copy_(torch.linalg.qr(state[f"{side}/{shape}"] @ basis).Q)
