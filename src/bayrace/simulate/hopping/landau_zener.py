"""Landau–Zener hops from energy gaps alone (Belyaev and Lebedev 2011).

Where the gap Z between the active state and another passes a minimum along a trajectory,

    P = exp(−(π/2ħ) √(Z³/Z̈)),

with Z and its second derivative in time from a parabola through three successive steps.
"""

from __future__ import annotations

import numpy as np

from bayrace.simulate.hopping.surfaces import Array, Whole


def probabilities(
    energies: tuple[Array, Array, Array], active: Whole, *, duration: float, hbar: float
) -> Array:
    """To hop to each state at the middle of three successive steps, (T, S); 0 at no minimum.

    `energies` are (T, S) each, oldest first; `duration` is the time between them.
    """
    rows = np.arange(len(active))
    early, middle, late = (np.abs(e - e[rows, active][:, None]) for e in energies)
    curvature = (early - 2 * middle + late) / duration**2
    slope = (late - early) / (2 * duration)
    minimum = (middle < early) & (middle <= late) & (curvature > 0)
    safe = np.where(minimum, curvature, 1.0)
    gap = np.clip(middle - slope**2 / (2 * safe), 0.0, None)
    result = np.where(minimum, np.exp(-np.pi / (2 * hbar) * np.sqrt(gap**3 / safe)), 0.0)
    result[rows, active] = 0.0
    return result
