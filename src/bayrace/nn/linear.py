"""Linear maps of one feature; `bayrace.nn.mixing` has those of whole layers.

Weights are drawn from a standard normal and divided by √(fan-in) when applied, so that one learning
rate suits every layer.
"""

from __future__ import annotations

import math

from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """(..., K) times (K, C) / √K."""
    return x @ (weight * (1 / math.sqrt(weight.shape[-2])))
