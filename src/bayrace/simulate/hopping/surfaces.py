"""What surface hopping asks of a molecule: adiabatic energies, a gradient, coupling vectors.

Sizes: T trajectories, S states, D coordinates (three of each atom, or one of a model).
Units are free as long as they agree: eV, Å, fs with masses in eV fs²/Å², or atomic units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]
Complex = NDArray[np.complex128]


@dataclass(frozen=True, eq=False)
class Point:
    """Electronic structure at one position of each trajectory."""

    energies: Array  # (T, S), ascending with the state
    gradient: Array  # (T, D), of the active state
    couplings: Array | None = None  # (T, S, S, D), ⟨i|∇j⟩, antisymmetric
    free_sign: bool = False  # whether their signs may differ from those of the step before
    trusted: Flags | None = None  # (T,), False where the surfaces say that they are not reliable


class Surfaces(Protocol):
    """Electronic structure of positions (T, D), with the gradient of the active state (T,)."""

    def __call__(self, positions: Array, active: Whole) -> Point:
        """Compute it for every trajectory; the same input must give the same numbers."""
        ...


def two_states(
    lower: Array, upper: Array, coupling: Array, slopes: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """Adiabats of H = [[a, c], [c, b]]: energies (T, 2), gradients (T, 2, D), coupling (T, D).

    `lower`, `upper`, `coupling` are a, b, c of shape (T,), `slopes` their gradients (T, D).
    E∓ = (a + b)/2 ∓ √((δ/2)² + c²) with δ = a − b, and d = ⟨−|∇+⟩ = (δ∇c − c∇δ)/(δ² + 4c²),
    which is ∇θ for |+⟩ = cos θ |a⟩ + sin θ |b⟩, |−⟩ = −sin θ |a⟩ + cos θ |b⟩, tan 2θ = 2c/δ.
    """
    first, second, third = slopes
    difference, slope = lower - upper, first - second
    root = np.sqrt((difference / 2) ** 2 + coupling**2)
    mean = (lower + upper) / 2
    turn = (difference / 4)[:, None] * slope + coupling[:, None] * third
    turn /= np.maximum(root, np.finfo(float).tiny)[:, None]
    energies = np.stack([mean - root, mean + root], axis=1)
    middle = (first + second) / 2
    gradients = np.stack([middle - turn, middle + turn], axis=1)
    vector = difference[:, None] * third - coupling[:, None] * slope
    vector /= np.maximum(4 * root**2, np.finfo(float).tiny)[:, None]
    return energies, gradients, vector


def antisymmetric(vector: Array) -> Array:
    """The couplings (T, 2, 2, D) of two states from ⟨0|∇1⟩, (T, D)."""
    result = np.zeros((len(vector), 2, 2, vector.shape[1]))
    result[:, 0, 1] = vector
    result[:, 1, 0] = -vector
    return result


def same_sign(couplings: Array, before: Array) -> Array:
    """The couplings with the signs of those of the step before, where signs are arbitrary.

    Signs belong to states: a pair has the product of two. The overlap with state 0's couplings
    decides, which is right as long as a step is short beside the turn of the vectors.
    """
    overlap = np.einsum("tjd,tjd->tj", couplings[:, 0], before[:, 0])
    sign = np.where(overlap < 0, -1.0, 1.0)
    sign[:, 0] = 1.0
    aligned: Array = couplings * (sign[:, :, None] * sign[:, None, :])[..., None]
    return aligned
