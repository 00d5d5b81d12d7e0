"""Linear maps of one feature; `bayrace.nn.mixing` has those of whole layers.

Weights are drawn from a standard normal and divided by √(fan-in) when applied, so that one learning
rate suits every layer.
"""

from __future__ import annotations

import math

from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """(..., K) times (K, C) / √K; both may have members in front."""
    return x @ (weight * (1 / math.sqrt(weight.shape[-2])))


def atomwise(x: Tensor, weight: Tensor) -> Tensor:
    """`linear` of atoms (N, ..., K) by (K, C), or by (M, K, C) where a M-th of them each share."""
    if weight.ndim == 2:
        return linear(x, weight)
    members = x.reshape(weight.shape[0], -1, weight.shape[-2])  # (M, N/M · ..., K)
    return linear(members, weight).reshape(*x.shape[:-1], weight.shape[-1])
