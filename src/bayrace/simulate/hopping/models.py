"""One-dimensional models with two states that surface hopping is tested on, in atomic units.

The three of Tully (J. Chem. Phys. 93, 1061, 1990) for a particle of mass 2000, and the double arch
of Subotnik and Shenvi (J. Chem. Phys. 134, 024105, 2011), where wave packets part and meet again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bayrace.simulate.hopping.surfaces import Array, Point, Whole, antisymmetric, two_states

MASS = 2000.0
Diabats = Callable[[Array], tuple[Array, Array]]
"""From x (T,) to (V11, V22, V12) and their slopes, (3, T) each."""


@dataclass(frozen=True)
class Model:
    """A two-state model of one coordinate; it is a `Surfaces`."""

    diabats: Diabats

    def __call__(self, positions: Array, active: Whole) -> Point:
        """Adiabats, the active one's slope and the coupling."""
        value, slope = self.diabats(positions[:, 0])
        slopes = (slope[0][:, None], slope[1][:, None], slope[2][:, None])
        energies, gradients, vector = two_states(value[0], value[1], value[2], slopes)
        rows = np.arange(len(active))
        return Point(energies, gradients[rows, active], antisymmetric(vector))


def simple_crossing(x: Array) -> tuple[Array, Array]:
    """Tully's first: a simple avoided crossing."""
    a, b, c, d = 0.01, 1.6, 0.005, 1.0
    decay = np.exp(-b * np.abs(x))
    first = np.sign(x) * a * (1 - decay)
    slope = a * b * decay
    coupling = c * np.exp(-d * x**2)
    return np.stack([first, -first, coupling]), np.stack([slope, -slope, -2 * d * x * coupling])


def dual_crossing(x: Array) -> tuple[Array, Array]:
    """Tully's second: two avoided crossings whose amplitudes interfere."""
    a, b, c, d, offset = 0.1, 0.28, 0.015, 0.06, 0.05
    well = -a * np.exp(-b * x**2)
    coupling = c * np.exp(-d * x**2)
    zero = np.zeros_like(x)
    return (
        np.stack([zero, well + offset, coupling]),
        np.stack([zero, -2 * b * x * well, -2 * d * x * coupling]),
    )


def extended_coupling(x: Array) -> tuple[Array, Array]:
    """Tully's third: an extended coupling with reflection."""
    a, b, c = 6e-4, 0.10, 0.90
    decay = np.exp(-c * np.abs(x))
    coupling = np.where(x < 0, b * decay, b * (2 - decay))
    flat, zero = np.full_like(x, a), np.zeros_like(x)
    return np.stack([flat, -flat, coupling]), np.stack([zero, zero, b * c * decay])


def double_arch(x: Array) -> tuple[Array, Array]:
    """Two extended couplings of opposite sense, at ±4: packets part in between and meet again."""
    a, b, c, half = 6e-4, 0.10, 0.90, 4.0
    left, right = np.exp(-c * np.abs(x + half)), np.exp(-c * np.abs(x - half))
    outside = b * np.where(x < 0, left, right) - b * np.where(x < 0, right, left)
    inside = 2 * b - b * (left + right)
    coupling = np.where(np.abs(x) < half, inside, outside)
    slope = np.where(
        np.abs(x) < half, b * c * (left - right), b * c * np.sign(-x) * np.abs(left - right)
    )
    flat, zero = np.full_like(x, a), np.zeros_like(x)
    return np.stack([flat, -flat, coupling]), np.stack([zero, zero, slope])
