"""The energy of a hop: velocities change along a direction, or the hop is frustrated."""

from __future__ import annotations

from typing import Literal

import numpy as np

from bayrace.simulate.hopping.surfaces import Array, Flags

Frustrated = Literal["keep", "reverse"]
"""A hop without enough energy: nothing happens, or the velocity turns round along the direction."""


def rescaled(
    velocities: Array,
    masses: Array,
    change: Array,
    direction: Array,
    *,
    frustrated: Frustrated = "keep",
) -> tuple[Array, Flags]:
    """Velocities (T, D) after the potential energy has changed by `change` (T,), and who hopped.

    The momentum changes along `direction` (T, D): v → v + γ d/m with ½ Σ m v² less by `change`.
    Of the two solutions the smaller γ is taken (Tully 1990), so that without a change of energy
    nothing happens.
    """
    slope = direction / masses
    quadratic = (direction * slope).sum(1) / 2
    linear = (velocities * direction).sum(1)
    root = linear**2 - 4 * quadratic * change
    possible = (root >= 0) & (quadratic > 0)
    safe = np.where(quadratic > 0, quadratic, 1.0)
    square = np.sqrt(np.where(possible, root, 0.0))
    sign = np.where(linear < 0, -1.0, 1.0)
    factor = np.where(possible, (sign * square - linear) / (2 * safe), 0.0)
    if frustrated == "reverse":
        factor = np.where(possible | (quadratic <= 0), factor, -linear / safe)
    result: Array = velocities + factor[:, None] * slope
    return result, possible


def kinetic_energy(velocities: Array, masses: Array) -> Array:
    """½ Σ m v² of each trajectory, (T,)."""
    result: Array = (velocities**2 * masses).sum(1) / 2
    return result
