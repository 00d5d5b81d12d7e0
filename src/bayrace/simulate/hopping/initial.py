"""Where trajectories begin: positions and velocities of a vibrating molecule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bayrace.simulate.hopping.surfaces import Array

_SOFT = 1e-4  # of the largest squared frequency: what is below does not vibrate


def wigner(
    positions: Array,
    hessian: Array,
    masses: Array,
    *,
    hbar: float,
    count: int,
    seed: int,
    thermal: float = 0.0,
    trajectories: range | None = None,
) -> tuple[Array, Array]:
    """Positions and velocities (count, D) from the Wigner distribution of harmonic modes.

    `positions` (D,) are a minimum, `hessian` (D, D) its second derivatives, `masses` (D,).
    `thermal` is k_B T in units of energy; 0 is the vibrational ground state. Translations and
    rotations, the six softest modes of more than one coordinate, are left at rest. Trajectory i
    depends on the seed and on i only.
    """
    root = np.sqrt(masses)
    values, modes = np.linalg.eigh((hessian + hessian.T) / 2 / np.outer(root, root))
    kept = values > _SOFT * values.max()
    kept[: 6 if len(positions) > 6 else 0] = False
    frequency, modes = np.sqrt(values[kept]), modes[:, kept]
    spread = np.sqrt(hbar / (2 * frequency))
    if thermal > 0:
        spread = spread / np.sqrt(np.tanh(hbar * frequency / (2 * thermal)))
    wanted = range(count) if trajectories is None else trajectories
    places, speeds = [], []
    for index in wanted:
        normal = np.random.default_rng([seed, 7, index]).standard_normal((2, len(frequency)))
        places.append(positions + modes @ (spread * normal[0]) / root)
        speeds.append(modes @ (spread * frequency * normal[1]) / root)
    return np.array(places), np.array(speeds)


def finite_difference_hessian(
    gradient: Callable[[Array], Array], positions: Array, *, step: float = 0.01
) -> Array:
    """Second derivatives (D, D) by central differences of a gradient, a function of (D,)."""
    rows = []
    for coordinate in range(len(positions)):
        shift = np.zeros_like(positions)
        shift[coordinate] = step
        rows.append((gradient(positions + shift) - gradient(positions - shift)) / (2 * step))
    hessian = np.array(rows)
    return (hessian + hessian.T) / 2
