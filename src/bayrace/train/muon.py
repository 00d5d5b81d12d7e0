"""Muon (Jordan 2024): for matrices, momentum with all singular values made equal; else Adam.

A gradient of a matrix is dominated by a few directions, and Adam, which rescales single entries,
leaves it so. Muon replaces the momentum G = U S Vᵀ by the nearest orthogonal matrix U Vᵀ, so that
every direction moves alike. It is found by Newton–Schulz iterations: odd polynomials of G that push
all singular values towards 1. Since p(G) = q(G Gᵀ) G, they are carried out on the smaller of the
two Gram matrices alone, for all matrices of a size at once; G itself is read twice. Square G are
multiplied by the factors instead, which are as small and round less. On a CPU with a compiler,
`bayrace.nn.newton_schulz` does all of this in one call.

An update has the root mean square of Adam's, 0.2 · lr (Liu 2025), so both share a learning rate.

Updates have that size whatever the gradients are, so weights wander: by about lr · √steps. What a
network says far from its data gets worse the further its weights have gone (docs/tried.md),
hence `peak`, which keeps that distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.nn import newton_schulz
from bayrace.nn.newton_schulz import Rates, Stack
from bayrace.train import adam
from bayrace.train.adam import AdamSettings
from bayrace.train.matrices import move, move_others, parted, stacked, together

_RMS = 0.2  # of an update, in units of the learning rate
_FASTER = 5.0  # the most that a short training multiplies the learning rate by
_TINY = 1e-30  # a matrix of zeros stays one
_CUSHION = 1.02  # rounding must not lead out of the first interval, the polynomials are steep there
_POLYNOMIALS = (
    (8.4703, -25.1081, 18.6293),
    (4.1828, -3.1087, 0.5806),
    (3.9619, -2.9541, 0.5630),
    (3.2866, -2.4647, 0.5074),
    (2.2737, -1.6447, 0.4162),
)
"""x (a + b x² + c x⁴), one after another: each is the best approximation of 1 on the interval that
the one before leaves, from [0.001, 1] to [0.89, 1.11] (Amsel 2025; the test computes them)."""


@dataclass(frozen=True)
class MuonSettings:
    """Muon for matrices, and Adam with decoupled weight decay for all other parameters."""

    adam: AdamSettings  # its learning rate and weight decay are those of the matrices too
    momentum: float  # memory of the gradient, for matrices
    usual_steps: int | None = None  # length of a training that lr is for; None: of any
    name: Literal["muon"] = field(default="muon", init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: must be in [0, 1), for example 0.95")

    @property
    def lr(self) -> float:
        """The peak; a schedule scales it."""
        return self.adam.lr

    def peak(self, steps: float) -> float:
        """The peak in a training of so many steps: it falls with their square root."""
        if self.usual_steps is None:
            return self.lr
        return self.lr * min(_FASTER, math.sqrt(self.usual_steps / steps))


def init(settings: MuonSettings, params: Params) -> dict[str, Tensor]:
    """`momentum/…` of the matrices by shape, and the state of Adam for the other parameters."""
    stacks, others = parted(params)
    state = adam.init(settings.adam, others)
    for shape, names in stacks.items():
        state[f"momentum/{shape}"] = torch.zeros_like(stacked(names, params), requires_grad=False)
    return state


@torch.no_grad()
def update(
    settings: MuonSettings,
    params: Params,
    grads: Sequence[Tensor],
    state: dict[str, Tensor],
    *,
    lr: float,
) -> None:
    """Move parameters and state in place; `grads` follow the order of `params`."""
    stacks, slopes = move_others(settings.adam, params, grads, state, lr=lr)
    every = [
        Stack(
            [params[name] for name in names],
            [slopes[name] for name in names],
            state[f"momentum/{shape}"],
        )
        for shape, names in stacks.items()
    ]
    if not every:
        return
    rates = Rates(
        memory=settings.momentum,
        scale=lr * _RMS,
        shrink=1 - lr * settings.adam.weight_decay,
        tiny=_TINY,
        cushion=_CUSHION,
    )
    if newton_schulz.available(every[0].momentum):
        newton_schulz.move(every, rates, _POLYNOMIALS)
    else:
        _move(every, rates)


def _move(stacks: Sequence[Stack], rates: Rates) -> None:
    """As `newton_schulz.move`, by PyTorch."""
    ahead = []
    for stack in stacks:
        slope = together(stack.gradients)
        stack.momentum.lerp_(slope, 1 - rates.memory)
        ahead.append(slope.lerp_(stack.momentum, rates.memory))  # Nesterov
    steps = orthogonal(ahead, scale=rates.scale)
    for stack, step in zip(stacks, steps, strict=True):
        move(stack.params, step, shrink=rates.shrink)


def orthogonal(stacks: Sequence[Tensor], *, scale: float = 1.0) -> list[Tensor]:
    """The nearest matrix with orthonormal rows or columns of each, (B, m, n), scaled.

    The factor is `scale` √max(m, n), which makes `scale` the root mean square of its entries.
    Singular values are 0.89 to 1.11 times that, or less where they were below 0.001 of the largest.
    """
    result = list(stacks)
    oblong: dict[int, list[int]] = {}
    for place, stack in enumerate(stacks):
        rows, columns = stack.shape[-2:]
        if rows == columns:
            result[place] = _square(stack) * (scale * math.sqrt(rows))
        else:
            oblong.setdefault(min(rows, columns), []).append(place)
    for places in oblong.values():
        grams = [_gram(stacks[place]) for place in places]
        roots = _inverse_roots(torch.cat(grams))
        parts = torch.split(roots, [len(gram) for gram in grams])
        for place, root in zip(places, parts, strict=True):
            rows, columns = stacks[place].shape[-2:]
            root = root * (scale * math.sqrt(max(rows, columns)))
            result[place] = root @ stacks[place] if rows < columns else stacks[place] @ root
    return result


def _gram(stack: Tensor) -> Tensor:
    rows, columns = stack.shape[-2:]
    return stack @ stack.mT if rows < columns else stack.mT @ stack


def _square(stack: Tensor) -> Tensor:
    """The polynomials of square matrices (B, n, n) themselves, which rounds less."""
    square, power, size = _normalised(_gram(stack))
    stack = stack * size.rsqrt()
    for step, polynomial in enumerate(_POLYNOMIALS):
        if step:
            square = _gram(stack)
            power = square @ square
        stack = stack @ _factor(polynomial, square, power)
    return stack


def _inverse_roots(gram: Tensor) -> Tensor:
    """Polynomials of Gram matrices (B, n, n) that approximate their inverse square roots."""
    square, power, size = _normalised(gram)
    total: Tensor | None = None
    for step, polynomial in enumerate(_POLYNOMIALS):
        factor = _factor(polynomial, square, power if step == 0 else square @ square)
        total = factor if total is None else total @ factor
        if step < len(_POLYNOMIALS) - 1:
            square = factor @ square @ factor
    assert total is not None
    return total * size.rsqrt()


def _normalised(gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gram matrices over a bound of their largest eigenvalue, their squares, and that bound."""
    size = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None].clamp(min=_TINY)
    gram = gram / size  # fourth powers of small numbers are not numbers in float32
    power = gram @ gram
    # no eigenvalue exceeds the fourth root of the trace of gram⁴
    largest = torch.linalg.matrix_norm(power, keepdim=True).clamp(min=_TINY).sqrt() * _CUSHION
    return gram / largest, power / largest.square(), size * largest


def _factor(polynomial: tuple[float, float, float], square: Tensor, power: Tensor) -> Tensor:
    """a + b s + c s² of Gram matrices s and their squares, which it overwrites."""
    constant, linear, quadratic = polynomial
    factor = power.mul_(quadratic).add_(square, alpha=linear)
    factor.diagonal(dim1=-2, dim2=-1).add_(constant)
    return factor
