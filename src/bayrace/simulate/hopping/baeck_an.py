"""Couplings in time from energy gaps alone (Baeck and An 2017; do Casal et al. 2021).

    |σ_ij| = ½ √(Z̈/Z),   0 where the gap Z = |E_i − E_j| is not curved upwards,

which is exact for two straight diabats with a constant coupling. Fewest switches need no coupling
vectors with it. Z̈ is taken backwards, from this moment and the three steps before.
"""

from __future__ import annotations

import numpy as np

from bayrace.simulate.hopping.surfaces import Array

_LEAST = 1e-9  # gap that counts as none, in units of energy


def mixing(energies: tuple[Array, Array, Array, Array], *, duration: float) -> Array:
    """σ (T, S, S), antisymmetric, of energies (T, S) now and one, two and three steps ago.

    Where there are only two steps before, Z̈ is that of their middle; where there are fewer, σ is 0.
    """
    now, one, two, three = (np.abs(each[:, :, None] - each[:, None, :]) for each in energies)
    central = now - 2 * one + two
    backward = 2 * now - 5 * one + 4 * two - three
    curvature = np.where(np.isnan(backward), central, backward) / duration**2
    curved = np.nan_to_num(curvature, nan=0.0).clip(min=0.0)
    size = np.sqrt(curved / np.maximum(now, _LEAST)) / 2
    result: Array = np.triu(size, 1) - np.tril(size, -1)
    return result
