"""One way to call every optimiser, and what they share: clipping and the moving average.

Adam, Muon, SOAP and IVON have a file each. Nothing is hidden: the state of an optimiser is a
dictionary of tensors that a checkpoint can hold, and parameters and state are changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.train import adam, ivon, muon, soap
from bayrace.train.adam import AdamSettings
from bayrace.train.ivon import IvonSettings
from bayrace.train.muon import MuonSettings
from bayrace.train.soap import SoapSettings

OptimiserState = dict[str, Tensor]
"""`count` (steps taken, int64 on the CPU) and what the optimiser remembers, by kind and name."""

Optimiser = AdamSettings | MuonSettings | SoapSettings | IvonSettings


def with_rate(settings: Optimiser, lr: float) -> Optimiser:
    """The same optimiser with this learning rate, whatever the length of the training."""
    match settings:
        case MuonSettings():
            return replace(settings, adam=replace(settings.adam, lr=lr), usual_steps=None)
        case SoapSettings():
            return replace(settings, adam=replace(settings.adam, lr=lr))
        case _:
            return replace(settings, lr=lr)


def peak_rate(settings: Optimiser, *, steps: float) -> float:
    """The learning rate that a schedule scales, in a training of so many steps."""
    return settings.peak(steps) if isinstance(settings, MuonSettings) else settings.lr


def init(settings: Optimiser, params: Params) -> OptimiserState:
    """The state before the first step."""
    match settings:
        case IvonSettings():
            return ivon.init(settings, params)
        case MuonSettings():
            return muon.init(settings, params)
        case SoapSettings():
            return soap.init(settings, params)
        case AdamSettings():
            return adam.init(settings, params)


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
    match settings:
        case IvonSettings():
            assert noise is not None
            ivon.update(settings, params, grads, state, noise, lr=lr)
        case MuonSettings():
            muon.update(settings, params, grads, state, lr=lr)
        case SoapSettings():
            soap.update(settings, params, grads, state, lr=lr)
        case AdamSettings():
            adam.update(settings, params, grads, state, lr=lr)


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
