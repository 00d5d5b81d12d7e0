"""Two electronic states by labels that stay smooth where the states meet.

An adiabat has a cusp at a conical intersection, which no smooth network follows. The mean of two
and the square of half their gap have none, and neither has

    h = √((E₁ − E₀)²/4 + s²),

which is half the gap in energy and slope where the gap is wide, so that its errors weigh as those
of energies do. E₀ and E₁ are the mean ∓ √(h² − s²). Files that have `energy_0`, `forces_0`,
`energy_1` and `forces_1` can be read by the names below as if they had these labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SOFTENING = 0.3  # s, eV
MEAN = ("energy_mean", "forces_mean")
SOFT_GAP = ("energy_soft_gap", "forces_soft_gap")  # h, and −∇h
_NEEDED = {"energy": ("energy_0", "energy_1"), "forces": ("forces_0", "forces_1")}


def derived_names(info: Mapping[str, Any], arrays: Mapping[str, Any]) -> set[str]:
    """Which of the names can be computed from these labels."""
    names: set[str] = set()
    if all(key in info for key in _NEEDED["energy"]):
        names |= {MEAN[0], SOFT_GAP[0]}
        if all(key in arrays for key in _NEEDED["forces"]):
            names |= {MEAN[1], SOFT_GAP[1]}
    return names


def derived_label(name: str, info: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """A label computed from those of the two states; None where the name or they are others."""
    if name not in derived_names(info, arrays):
        return None
    low, high = (float(info[key]) for key in _NEEDED["energy"])
    if name == MEAN[0]:
        return (low + high) / 2
    soft = np.hypot((high - low) / 2, SOFTENING)
    if name == SOFT_GAP[0]:
        return float(soft)
    first, second = (np.asarray(arrays[key], dtype=np.float64) for key in _NEEDED["forces"])
    if name == MEAN[1]:
        return (first + second) / 2
    return (second - first) / 2 * ((high - low) / 2 / soft)
