"""Decoherence by the exact factorisation: SHXF (Ha, Lee and Min, J. Phys. Chem. Lett. 9, 1097).

Every state that shares the population has an auxiliary trajectory. It starts where the real one is,
moves with the real velocity scaled to conserve its own energy, and tells where the wave packet of
that state would be. With populations ρ and masses M, the amplitudes feel

    ċ_i = c_i Σ_ν (R_ν − Σ_j ρ_j R_jν)·(f_iν − Σ_j ρ_j f_jν) / (2 σ² M_ν),

the product of the quantum momentum of Gaussians of width σ about the auxiliary positions R_j, and
of the momentum f that each state has gathered since its auxiliary trajectory began.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from bayrace.simulate.hopping.electronic import Rates
from bayrace.simulate.hopping.surfaces import Array, Complex, Flags, Whole


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """Auxiliary trajectories of T real ones."""

    positions: Array  # (T, S, D)
    velocities: Array  # (T, S, D)
    momenta: Array  # (T, S, D), gathered since the start: f
    coherent: Flags  # (T, S), whether there is one
    fixed: Flags  # (T, S), out of kinetic energy

    def take(self, rows: Whole) -> Auxiliary:
        """Those of some trajectories."""
        return Auxiliary(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def no_auxiliary(trajectories: int, states: int, coordinates: int) -> Auxiliary:
    """None yet."""
    shape = (trajectories, states)
    zero = np.zeros((*shape, coordinates))
    return Auxiliary(zero, zero, zero, np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool))


def decoherence_rates(auxiliary: Auxiliary, positions: Array, masses: Array, width: Array) -> Rates:
    """The rates r of `electronic.propagate` for these auxiliary trajectories; `width` is (D,)."""
    weight = 1 / (2 * width**2 * masses)

    def rates(populations: Array) -> Array:
        shared = np.where(auxiliary.coherent, populations, 0.0)
        total = np.maximum(shared.sum(1), 1e-12)[:, None]
        shared = shared / total
        centre = np.einsum("ts,tsd->td", shared, auxiliary.positions)
        away = np.where(np.any(auxiliary.coherent, axis=1, keepdims=True), positions - centre, 0.0)
        gathered = np.einsum("ts,tsd->td", shared, auxiliary.momenta)
        relative = np.where(
            auxiliary.coherent[..., None], auxiliary.momenta - gathered[:, None], 0.0
        )
        result: Array = np.einsum("td,tsd->ts", away * weight, relative)
        return result

    return rates


def moved(
    auxiliary: Auxiliary,
    positions: Array,
    velocities: Array,
    active: Whole,
    energies: tuple[Array, Array],
    *,
    masses: Array,
    duration: float,
) -> Auxiliary:
    """After a step of the real ones to these positions and velocities.

    `energies` (T, S) are those before and after the step. An auxiliary trajectory that would need
    more kinetic energy than it has stays where it is.
    """
    rows = np.arange(len(active))
    running = np.zeros_like(auxiliary.coherent)
    running[rows, active] = True
    place = auxiliary.positions + auxiliary.velocities * duration
    place = np.where(running[..., None], positions[:, None], place)
    kinetic = np.maximum((velocities**2 * masses).sum(1) / 2, 1e-300)[:, None]
    old = (auxiliary.velocities**2 * masses).sum(2) / 2
    left = np.where(running, kinetic, old + energies[0] - energies[1])
    fixed = auxiliary.fixed | (left < 0)
    left = np.where(fixed, 0.0, left)
    speed = velocities[:, None] * np.sqrt(np.clip(left, 0.0, None) / kinetic)[..., None]
    momenta = auxiliary.momenta + masses * (speed - auxiliary.velocities)
    return Auxiliary(place, speed, momenta, auxiliary.coherent, fixed)


def renewed(
    auxiliary: Auxiliary,
    amplitudes: Complex,
    positions: Array,
    velocities: Array,
    active: Whole,
    energies: Array,
    *,
    masses: Array,
    threshold: float,
) -> tuple[Auxiliary, Complex]:
    """Start auxiliary trajectories where population is shared, end them where it is not.

    A state holds its share while its population is above `threshold` and below one less that. Where
    a state with an auxiliary trajectory has all but the threshold, the others are set to zero.
    """
    populations = np.abs(amplitudes) ** 2
    alone = auxiliary.coherent & (populations > 1 - threshold)
    purged: Flags = np.any(alone, axis=1, keepdims=True)
    pure = np.where(alone, amplitudes / np.maximum(np.abs(amplitudes), 1e-300), 0.0)
    amplitudes = np.where(purged, pure, amplitudes)
    shared = (populations >= threshold) & (populations <= 1 - threshold) & ~purged
    shared &= (shared.sum(1) > 1)[:, None]
    begun = shared & ~auxiliary.coherent
    rows = np.arange(len(active))
    kinetic = np.maximum((velocities**2 * masses).sum(1) / 2, 1e-300)[:, None]
    left = kinetic + energies[rows, active][:, None] - energies
    speed = velocities[:, None] * np.sqrt(np.clip(left, 0.0, None) / kinetic)[..., None]
    keep, new = shared & ~begun, begun[..., None]
    result = Auxiliary(
        positions=np.where(new, positions[:, None], auxiliary.positions),
        velocities=np.where(new, speed, auxiliary.velocities),
        momenta=np.where(new, 0.0, auxiliary.momenta),
        coherent=shared,
        fixed=np.where(begun, left < 0, auxiliary.fixed & keep),
    )
    return result, amplitudes


def forgotten(auxiliary: Auxiliary, hopped: Flags) -> Auxiliary:
    """Without those of trajectories that have just hopped."""
    return replace(auxiliary, coherent=auxiliary.coherent & ~hopped[:, None])
