"""Radial functions: Bessel waves under a polynomial envelope, and the SiLU of networks on them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SILU_GAIN = 1.6765  # makes SiLU of a standard normal have unit second moment


def envelope(x: Tensor, power: int) -> Tensor:
    """Polynomial that is 1 at x = 0 and meets 0 at x = 1 with two derivatives; 0 beyond.

    u_p(x) = 1 - (p+1)(p+2)/2 x^p + p(p+2) x^(p+1) - p(p+1)/2 x^(p+2)
    """
    p = power
    tail = (p + 1) * (p + 2) / 2 - p * (p + 2) * x + p * (p + 1) / 2 * x * x
    return torch.where(x < 1, 1 - x**p * tail, torch.zeros_like(x))


def bessel_basis(distance: Tensor, *, cutoff: float, count: int, power: int) -> Tensor:
    """√2 sin(nπx)/x times the envelope for n = 1..count, x = distance / cutoff: (E, count)."""
    x = distance / cutoff
    order = torch.arange(1, count + 1, dtype=x.dtype, device=x.device) * math.pi
    waves = torch.sin(order * x.unsqueeze(-1)) * (math.sqrt(2) / x).unsqueeze(-1)
    return waves * envelope(x, power).unsqueeze(-1)


def silu(value: Tensor) -> Tensor:
    """SiLU scaled to keep the second moment of a standard normal."""
    return SILU_GAIN * torch.nn.functional.silu(value)
