"""Real spherical harmonics up to l = 3, component-normalised: Σ_m Y_lm² = 2l + 1.

The polar axis is y, as in e3nn, so that its Clebsch–Gordan tables apply.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_DEGREE = 3


def spherical_harmonics(unit: Tensor, l_max: int) -> Tensor:
    """Harmonics of unit vectors (E, 3), as (E, (l_max + 1)²), degrees one after the other."""
    if not 0 <= l_max <= MAX_DEGREE:
        raise ValueError(f"l_max={l_max}: harmonics are available for 0 to {MAX_DEGREE}")
    x, y, z = unit.unbind(-1)
    parts = [torch.ones_like(x)]
    if l_max >= 1:
        parts += [math.sqrt(3) * x, math.sqrt(3) * y, math.sqrt(3) * z]
    if l_max >= 2:
        xz, zz_xx, yy = x * z, z * z - x * x, y * y
        root = math.sqrt(15)
        parts += [
            root * xz,
            root * x * y,
            math.sqrt(5) / 2 * (3 * yy - 1),
            root * y * z,
            root / 2 * zz_xx,
        ]
    if l_max >= 3:
        third, first = math.sqrt(70) / 4, math.sqrt(42) / 4
        parts += [
            third * x * (3 * z * z - x * x),
            math.sqrt(105) * xz * y,
            first * x * (5 * yy - 1),
            math.sqrt(7) / 2 * y * (5 * yy - 3),
            first * z * (5 * yy - 1),
            math.sqrt(105) / 2 * y * zz_xx,
            third * z * (z * z - 3 * x * x),
        ]
    return torch.stack(parts, dim=-1)
