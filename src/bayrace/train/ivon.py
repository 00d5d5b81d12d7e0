"""IVON (Shen 2024): Newton steps on weights with noise find a mean and a variance of each weight.

Variational inference with the Gaussian N(m, diag σ²) and the prior N(0, 1/(ess δ)) minimises

    ess · E[ℓ(θ)] + KL,        σ² = 1 / (ess (h + δ)),

where ℓ is the mean negative log-likelihood per structure and h estimates its diagonal Hessian.
Every step takes one gradient ĝ of ℓ at θ = m + σε; since ε is known, ĝε/σ is a second derivative
on average. SPEC section 4 has the equations. Two things are ours:

- bayrace's losses leave out the ½ of the Gaussian (SPEC section 3), so ℓ is half the loss. Then
  exp(-ess ℓ) with ess = number of structures is the likelihood of the energies as it stands
  (temperature 1), times that of every atom's force to the power 1/(atoms of its structure), because
  the loss averages over atoms. λ cancels where noise is learned. Where it is not (mse), the loss is
  the likelihood under noise of variance 1/λ_E of an energy and 3·atoms/λ_F of a force component.
- ρ, the share of a new ĥ in h, is pace/(t + 20 pace) until that falls to 1 - β2. h is thus an
  average that forgets its start at any length of a run; with ρ = 5e-6 from the first step on, ten
  thousand steps would leave h within 5 % of its initial value. `pace=None` is the paper's constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from bayrace.train.normal import generator, normal_like
from bayrace.types import Params

_HALF = 0.5  # the loss is twice a negative log-likelihood
_OFFSET = 20.0  # the first ρ is about 1/20: a single ĥ is mostly noise
_STREAM = 1  # apart from other uses of the run's seed


@dataclass(frozen=True)
class IvonSettings:
    """The optimiser's numbers; the loop may take them in place of Adam's."""

    lr: float  # the peak; a schedule scales it
    ess: float  # effective sample size: weight of the likelihood against the prior
    hess_init: float  # h before the first step
    betas: tuple[float, float]  # memory of the gradient and of the Hessian
    weight_decay: float  # δ: prior precision divided by ess
    clip_radius: float  # largest change of a weight in units of the learning rate
    pace: float | None  # of ρ, see above
    name: Literal["ivon"] = field(default="ivon", init=False)

    def __post_init__(self) -> None:
        for name in ("lr", "ess", "hess_init", "weight_decay", "clip_radius"):
            if not getattr(self, name) > 0:
                raise ValueError(f"ivon: {name}={getattr(self, name)} must be positive")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                f"ivon: betas={self.betas}: both must be in [0, 1), for example (0.9, 0.999995)"
            )
        if self.pace is not None and not self.pace >= 1:
            raise ValueError(
                f"ivon: pace={self.pace}: below 1 the initial Hessian is never forgotten; "
                "use for example 3, or null for a constant share"
            )


def init(settings: IvonSettings, params: Params) -> dict[str, Tensor]:
    """`count` (steps taken), and `momentum/…` and `hessian/…` of the parameters' shapes."""
    state = {f"momentum/{k}": torch.zeros_like(v, requires_grad=False) for k, v in params.items()}
    state |= {
        f"hessian/{k}": torch.full_like(v, settings.hess_init, requires_grad=False)
        for k, v in params.items()
    }
    state["count"] = torch.zeros((), dtype=torch.int64)
    return state


@torch.no_grad()
def perturb(
    settings: IvonSettings, params: Params, state: dict[str, Tensor], *, seed: int, step: int
) -> tuple[Params, Params]:
    """Where the gradient of a step is taken, θ = m + σε as new leaves, and ε.

    ε depends on (seed, step) only, so that a resumed run meets the same.
    """
    noise = normal_like(params, generator(seed, _STREAM, step))
    moved = {
        name: mean + noise[name] * _deviation(settings, state[f"hessian/{name}"])
        for name, mean in params.items()
    }
    return {name: value.requires_grad_(True) for name, value in moved.items()}, noise


@torch.no_grad()
def update(
    settings: IvonSettings,
    params: Params,
    grads: Sequence[Tensor],
    state: dict[str, Tensor],
    noise: Params,
    *,
    lr: float,
) -> None:
    """Move mean, momentum and Hessian in place, by the gradients of the loss at m + σε."""
    count = int(state["count"].add_(1))
    memory, decay = settings.betas[0], settings.weight_decay
    share = hessian_share(settings, count)
    for (name, mean), grad in zip(params.items(), grads, strict=True):
        hessian, momentum = state[f"hessian/{name}"], state[f"momentum/{name}"]
        gradient = _HALF * grad
        estimate = gradient * noise[name] / _deviation(settings, hessian)
        momentum.lerp_(gradient, 1 - memory)
        surprise = share * (hessian - estimate)
        # The last term is a retraction: h + δ falls by at most half, whatever the estimate.
        hessian += surprise.square() / (2 * (hessian + decay)) - surprise
        newton = (momentum / (1 - memory**count) + decay * mean) / (hessian + decay)
        mean -= lr * newton.clamp(-settings.clip_radius, settings.clip_radius)


def hessian_share(settings: IvonSettings, count: int) -> float:
    """ρ of step `count`, from 1."""
    floor = 1 - settings.betas[1]
    if settings.pace is None:
        return floor
    return max(floor, settings.pace / (count + _OFFSET * settings.pace))


def _deviation(settings: IvonSettings, hessian: Tensor) -> Tensor:
    """σ of each weight."""
    return (hessian + settings.weight_decay).rsqrt() / math.sqrt(settings.ess)
