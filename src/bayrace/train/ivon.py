"""IVON (Shen 2024): Newton steps on weights with noise find a mean and a variance of each weight.

Variational inference with the Gaussian N(m, diag σ²) and the prior N(0, 1/(ess δ)) minimises

    ess · E[ℓ(θ)] + KL,        σ² = 1 / (ess (h + δ)),

where ℓ is the mean negative log-likelihood per structure and h estimates its diagonal Hessian.
Every step takes one gradient ĝ of ℓ at θ = m + σε; since ε is known, ĝε/σ is a second derivative
on average. docs/theory.md, Posteriors has the equations; what differs is ours:

- bayrace's losses leave out the ½ of the Gaussian (docs/theory.md), so ℓ is half the loss. Then
  exp(-ess ℓ) with ess = number of structures is the likelihood of the energies as it stands
  (temperature 1), times that of every atom's force to the power 1/(atoms of its structure), because
  the loss averages over atoms. λ cancels where noise is learned. Where it is not (mse), the loss is
  the likelihood under noise of variance 1/λ_E of an energy and 3·atoms/λ_F of a force component.
- `hessian="averaged"`, the default, learns h in thousands of steps instead of millions. The share
  ρ of a new ĥ is 2/(t + 200) until that falls to 1 - β2, so that an average of all ĥ forgets its
  start at any length of a run; with ρ = 5e-6 throughout, ten thousand steps would leave h within
  5 % of hess_init where ĥ is small. ĥ is made of ĝ minus the momentum, which does not know ε: its
  mean is the same, its noise far less while the weights are far from their optimum.
- The noise of a minibatch's gradient stays in ĥ, times √(ess (h + δ)), and is often many times h.
  The paper's ½ρ²(h - ĥ)²/(h + δ), which keeps h positive, adds the variance of that noise to h at
  every step. The plain average has no such bias, but may be negative. So its variance is averaged
  along with it, and h is the expectation of a positive number given both, and given that weights
  of one tensor are alike: each average is drawn towards the tensor's mean by as much as the scatter
  of the tensor's averages is noise (empirical Bayes). What the noise hides of single weights is
  left to the end of the run, see bayrace.posterior.ivon. `hessian="paper"` has none of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.train.normal import generator, normal_like

_HALF = 0.5  # the loss is twice a negative log-likelihood
_PACE, _OFFSET = 2.0, 200.0  # of ρ: weights in the average rise linearly, and start softly
_TINY = 1e-30  # of variances
_STREAM = 1  # apart from other uses of the run's seed

HessianRule = Literal["averaged", "paper"]


@dataclass(frozen=True)
class IvonSettings:
    """The optimiser's numbers; the loop may take them in place of Adam's."""

    lr: float  # the peak; a schedule scales it
    ess: float  # effective sample size: weight of the likelihood against the prior
    hess_init: float  # h before the first step
    betas: tuple[float, float]  # memory of the gradient and of the Hessian
    weight_decay: float  # δ: prior precision divided by ess
    clip_radius: float  # largest change of a weight in units of the learning rate
    hessian: HessianRule
    name: Literal["ivon"] = field(default="ivon", init=False)

    def __post_init__(self) -> None:
        for name in ("lr", "ess", "hess_init", "weight_decay", "clip_radius"):
            if not getattr(self, name) > 0:
                raise ValueError(f"ivon: {name}={getattr(self, name)} must be positive")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                f"ivon: betas={self.betas}: both must be in [0, 1), for example (0.9, 0.999995)"
            )
        if self.hessian not in ("averaged", "paper"):
            raise ValueError(f"ivon: hessian={self.hessian!r} is unknown; use averaged or paper")


def init(settings: IvonSettings, params: Params) -> dict[str, Tensor]:
    """`count` (steps taken), and `momentum/…` and `hessian/…` of the parameters' shapes.

    If averaged, also `average/…` of the estimates of h, and `error/…`, its variance.
    """
    start = {"momentum": 0.0, "hessian": settings.hess_init}
    if settings.hessian == "averaged":
        start |= {"average": settings.hess_init, "error": 0.0}
    state = {
        f"{slot}/{name}": torch.full_like(value, number, requires_grad=False)
        for slot, number in start.items()
        for name, value in params.items()
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
    memory, decay, radius = settings.betas[0], settings.weight_decay, settings.clip_radius
    share, averaged = hessian_share(settings, count), settings.hessian == "averaged"
    for (name, mean), grad in zip(params.items(), grads, strict=True):
        hessian, momentum = state[f"hessian/{name}"], state[f"momentum/{name}"]
        gradient = _HALF * grad
        expected = momentum / (1 - memory ** (count - 1)) if averaged and count > 1 else 0.0
        estimate = (gradient - expected) * noise[name] / _deviation(settings, hessian)
        if averaged:
            average, error = state[f"average/{name}"], state[f"error/{name}"]
            surprise = estimate - average
            average += share * surprise
            error.mul_((1 - share) ** 2).addcmul_(surprise, surprise, value=share**2)
            hessian.copy_(positive_hessian(average, error))
        else:
            damped = hessian + decay
            surprise = share * (hessian - estimate) / damped
            # The square is the retraction: h + δ falls by at most half, whatever the estimate.
            hessian += damped * (surprise.square() / 2 - surprise)
        momentum.lerp_(gradient, 1 - memory)
        newton = (momentum / (1 - memory**count) + decay * mean) / (hessian + decay)
        mean -= lr * newton.clamp(-radius, radius)


def hessian_share(settings: IvonSettings, count: int) -> float:
    """ρ of step `count`, from 1."""
    floor = 1 - settings.betas[1]
    if settings.hessian == "paper":
        return floor
    return max(floor, _PACE / (count + _OFFSET))


def positive_hessian(average: Tensor, error: Tensor) -> Tensor:
    """E[h | h > 0] of each weight of a tensor, from unbiased averages and their variances.

    The prior of h is a Gaussian with the mean of the averages and what their scatter exceeds their
    variances by.
    """
    mean, noise = average.mean(), error.mean()
    scatter = (average.var(correction=0) - noise).clamp(min=0.0)
    share = scatter / (scatter + error).clamp(min=_TINY)
    centre = mean + share * (average - mean)
    std = (share * error + noise / average.numel()).clamp(min=_TINY).sqrt()
    z = (centre / std).clamp(min=-5.0)
    density = (-z.square() / 2 - torch.special.log_ndtr(z)).exp() / math.sqrt(2 * math.pi)
    found: Tensor = std * (z + density)
    return found


def _deviation(settings: IvonSettings, hessian: Tensor) -> Tensor:
    """σ of each weight."""
    return (hessian + settings.weight_decay).rsqrt() / math.sqrt(settings.ess)
