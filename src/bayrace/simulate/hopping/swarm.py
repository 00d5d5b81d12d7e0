"""A swarm of trajectories that hop between adiabatic states (velocity Verlet on the active one).

All trajectories move together, so that a model or a network sees them as one batch; each has random
numbers of its own, so that results do not depend on how a swarm is divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from bayrace.simulate.hopping import baeck_an, landau_zener
from bayrace.simulate.hopping.electronic import Interval, decohered, mixing_matrix, propagate
from bayrace.simulate.hopping.factorisation import (
    Auxiliary,
    decoherence_rates,
    forgotten,
    moved,
    no_auxiliary,
    renewed,
)
from bayrace.simulate.hopping.rescale import Frustrated, kinetic_energy, rescaled
from bayrace.simulate.hopping.surfaces import (
    Array,
    Complex,
    Flags,
    Point,
    Surfaces,
    Whole,
    same_sign,
)

Method = Literal["fssh", "shxf", "baeck-an", "landau-zener"]
RUNNING, UNTRUSTED, DRIFTED = 0, 1, 2
"""Why a trajectory has stopped: not at all, by the uncertainty rule, by its total energy."""


@dataclass(frozen=True)
class HopSettings:
    """How a swarm moves; units are those of the surfaces."""

    method: Method
    timestep: float
    steps: int
    hbar: float
    substeps: int = 20  # of the amplitudes in a step of the nuclei
    decoherence: Literal["energy", "none"] = "energy"  # of fssh, baeck-an
    decoherence_constant: float = 2.7211  # C of the energy-based one; 0.1 hartree
    width: float | tuple[float, ...] = 0.0529  # σ of shxf, of all or each coordinate; 0.1 bohr
    threshold: float = 0.01  # shxf: populations that count as shared
    direction: Literal["coupling", "velocity"] = "coupling"  # of the momentum that pays for a hop
    frustrated: Frustrated = "keep"
    max_drift: float = math.inf  # of the total energy, after which a trajectory is stopped
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that make no dynamics."""
        for name in ("timestep", "hbar", "decoherence_constant", "max_drift"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be above 0")
        if self.steps < 0 or self.substeps < 1:
            raise ValueError(
                f"steps={self.steps}, substeps={self.substeps}: give 0 or more, and 1 or more"
            )
        if not 0 < self.threshold < 0.5:
            raise ValueError(f"threshold={self.threshold}: give one between 0 and 0.5, as 0.01")


@dataclass(frozen=True, eq=False)
class Swarm:
    """T trajectories at one time."""

    step: int
    index: Whole  # (T,), number of the trajectory, which its random numbers depend on
    positions: Array  # (T, D)
    velocities: Array  # (T, D)
    amplitudes: Complex  # (T, S)
    active: Whole  # (T,)
    status: Whole  # (T,), RUNNING, UNTRUSTED or DRIFTED
    start_energy: Array  # (T,), total, that is to be conserved
    point: Point  # at these positions
    auxiliary: Auxiliary  # of shxf
    history: tuple[Array, Array, Array]  # energies (T, S) one, two and three steps ago
    before: tuple[Array, Array]  # positions and velocities (T, D) one step ago

    @property
    def populations(self) -> Array:
        """|c|² of each state, (T, S)."""
        result: Array = np.abs(self.amplitudes) ** 2
        return result

    def total_energy(self, masses: Array) -> Array:
        """Kinetic energy and that of the active state, (T,)."""
        rows = np.arange(len(self.active))
        return kinetic_energy(self.velocities, masses) + self.point.energies[rows, self.active]


def begin(
    surfaces: Surfaces,
    positions: Array,
    velocities: Array,
    masses: Array,
    active: Whole,
    *,
    index: Whole | None = None,
) -> Swarm:
    """A swarm at time 0 with all population in the active states; `masses` are (D,)."""
    count, coordinates = positions.shape
    point = surfaces(positions, active)
    states = point.energies.shape[1]
    amplitudes = np.zeros((count, states), dtype=complex)
    amplitudes[np.arange(count), active] = 1.0
    swarm = Swarm(
        step=0,
        index=np.arange(count) if index is None else index,
        positions=positions.copy(),
        velocities=velocities.copy(),
        amplitudes=amplitudes,
        active=active.copy(),
        status=_status(point, count),
        start_energy=np.zeros(count),
        point=point,
        auxiliary=no_auxiliary(count, states, coordinates),
        history=(np.full((count, states), np.nan),) * 3,
        before=(positions.copy(), velocities.copy()),
    )
    return replace(swarm, start_energy=swarm.total_energy(masses))


def run(surfaces: Surfaces, swarm: Swarm, masses: Array, settings: HopSettings) -> Iterator[Swarm]:
    """Every step after `swarm`'s, until `settings.steps` or until all trajectories have stopped."""
    draws = np.stack([random_numbers(i, settings) for i in swarm.index])
    while swarm.step < settings.steps:
        running = np.flatnonzero(swarm.status == RUNNING)
        if not len(running):
            return
        part = swarm if len(running) == len(swarm.status) else _take(swarm, running)
        part = _advance(surfaces, part, masses, settings, draws[running, swarm.step])
        swarm = part if part.status.size == swarm.status.size else _put(swarm, running, part)
        yield swarm


def random_numbers(index: int, settings: HopSettings) -> Array:
    """Uniform numbers of one trajectory, one for each step."""
    return np.random.default_rng([settings.seed, int(index)]).random(settings.steps)


def _advance(
    surfaces: Surfaces, swarm: Swarm, masses: Array, settings: HopSettings, draws: Array
) -> Swarm:
    """One step of trajectories that all run."""
    old, swarm = swarm, _verlet(surfaces, swarm, masses, settings.timestep)
    if settings.method == "landau-zener":
        swarm = _landau_zener(surfaces, old, swarm, masses, settings, draws)
    else:
        swarm = _fewest_switches(surfaces, old, swarm, masses, settings, draws)
    drift = np.abs(swarm.total_energy(masses) - swarm.start_energy)
    status = np.where(drift <= settings.max_drift, _status(swarm.point, len(drift)), DRIFTED)
    return replace(swarm, status=status)


def _verlet(surfaces: Surfaces, swarm: Swarm, masses: Array, duration: float) -> Swarm:
    half = swarm.velocities - swarm.point.gradient / masses * (duration / 2)
    positions = swarm.positions + half * duration
    point = surfaces(positions, swarm.active)
    if point.free_sign and point.couplings is not None and swarm.point.couplings is not None:
        point = replace(point, couplings=same_sign(point.couplings, swarm.point.couplings))
    return replace(
        swarm,
        step=swarm.step + 1,
        positions=positions,
        velocities=half - point.gradient / masses * (duration / 2),
        point=point,
        history=(swarm.point.energies, *swarm.history[:2]),
        before=(swarm.positions, swarm.velocities),
    )


def _fewest_switches(
    surfaces: Surfaces,
    old: Swarm,
    swarm: Swarm,
    masses: Array,
    settings: HopSettings,
    draws: Array,
) -> Swarm:
    energies = (old.point.energies, swarm.point.energies)
    mixing = (_mixing(old, settings), _mixing(swarm, settings))
    auxiliary, rates = swarm.auxiliary, None
    if settings.method == "shxf":
        width = np.broadcast_to(np.asarray(settings.width, dtype=float), masses.shape)
        auxiliary = moved(
            auxiliary, swarm.positions, swarm.velocities, swarm.active, energies,
            masses=masses, duration=settings.timestep,
        )  # fmt: skip
        rates = decoherence_rates(auxiliary, swarm.positions, masses, width)
    amplitudes, chances = propagate(
        old.amplitudes,
        swarm.active,
        Interval(energies, mixing, settings.timestep),
        substeps=settings.substeps,
        hbar=settings.hbar,
        rates=rates,
    )
    if settings.method != "shxf" and settings.decoherence == "energy":
        amplitudes = decohered(
            amplitudes,
            swarm.active,
            swarm.point.energies,
            kinetic_energy(swarm.velocities, masses),
            duration=settings.timestep,
            hbar=settings.hbar,
            constant=settings.decoherence_constant,
        )
    swarm = replace(swarm, amplitudes=amplitudes, auxiliary=auxiliary)
    target = _chosen(chances, draws, swarm.active)
    swarm, hopped = _hopped(surfaces, swarm, target, masses, settings)
    if settings.method != "shxf":
        return swarm
    auxiliary, amplitudes = renewed(
        forgotten(swarm.auxiliary, hopped), swarm.amplitudes, swarm.positions, swarm.velocities,
        swarm.active, swarm.point.energies, masses=masses, threshold=settings.threshold,
    )  # fmt: skip
    return replace(swarm, auxiliary=auxiliary, amplitudes=amplitudes)


def _mixing(swarm: Swarm, settings: HopSettings) -> Array:
    """σ at this moment, (T, S, S)."""
    if settings.method == "baeck-an":
        energies = (swarm.point.energies, *swarm.history)
        return baeck_an.mixing(energies, duration=settings.timestep)
    if swarm.point.couplings is None:
        raise ValueError(
            f"method={settings.method}: these surfaces have no coupling vectors; use landau-zener "
            "or baeck-an"
        )
    return mixing_matrix(swarm.point.couplings, swarm.velocities)


def _landau_zener(
    surfaces: Surfaces,
    old: Swarm,
    swarm: Swarm,
    masses: Array,
    settings: HopSettings,
    draws: Array,
) -> Swarm:
    """A hop belongs to the step before, where the gap was least; the last step is then repeated."""
    chances = landau_zener.probabilities(
        (old.history[0], old.point.energies, swarm.point.energies),
        swarm.active,
        duration=settings.timestep,
        hbar=settings.hbar,
    )
    target = _chosen(chances, draws, swarm.active)
    switching = np.flatnonzero(target != swarm.active)
    if not len(switching):
        return swarm
    part, hopped = _hopped(surfaces, _take(old, switching), target[switching], masses, settings)
    rows = np.arange(len(switching))
    amplitudes = np.zeros_like(part.amplitudes)
    amplitudes[rows, part.active] = 1.0
    again = _verlet(surfaces, replace(part, amplitudes=amplitudes), masses, settings.timestep)
    # a frustrated one stays as it is; after a hop the same minimum must not be met again
    history = (np.full_like(again.history[0], np.nan), *again.history[1:])
    again = replace(again, history=history)
    done: Swarm = _put(swarm, switching[hopped], _take(again, np.flatnonzero(hopped)))
    return done


def _hopped(
    surfaces: Surfaces, swarm: Swarm, target: Whole, masses: Array, settings: HopSettings
) -> tuple[Swarm, Flags]:
    """After hops to `target` (T,) where it is another state, and which of them took place."""
    trying = np.flatnonzero(target != swarm.active)
    hopped = np.zeros(len(target), dtype=bool)
    if not len(trying):
        return swarm, hopped
    here, there = swarm.active[trying], target[trying]
    energies, couplings = swarm.point.energies[trying], swarm.point.couplings
    rows = np.arange(len(trying))
    if settings.direction == "velocity" or couplings is None:
        direction = swarm.velocities[trying] * masses
    else:
        direction = couplings[trying, here, there]
    velocities, possible = rescaled(
        swarm.velocities[trying],
        masses,
        energies[rows, there] - energies[rows, here],
        direction,
        frustrated=settings.frustrated,
    )
    hopped[trying] = possible
    all_velocities, active = swarm.velocities.copy(), swarm.active.copy()
    all_velocities[trying] = velocities
    active[hopped] = target[hopped]
    swarm = replace(swarm, velocities=all_velocities, active=active)
    moving = np.flatnonzero(hopped)
    if len(moving):  # on another surface other forces act
        gradient = swarm.point.gradient.copy()
        gradient[moving] = surfaces(swarm.positions[moving], active[moving]).gradient
        swarm = replace(swarm, point=replace(swarm.point, gradient=gradient))
    return swarm, hopped


def _chosen(chances: Array, draws: Array, active: Whole) -> Whole:
    """The state to hop to, (T,), or the active one."""
    reached = draws[:, None] < np.cumsum(chances, axis=1)
    result: Whole = np.where(reached.any(1), reached.argmax(1), active)
    return result


def _status(point: Point, count: int) -> Whole:
    if point.trusted is None:
        return np.full(count, RUNNING)
    return np.where(point.trusted, RUNNING, UNTRUSTED)


def _take(value: Any, rows: Whole) -> Any:
    """Some rows of everything that has one for each trajectory."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, tuple):
        return tuple(_take(v, rows) for v in value)
    if isinstance(value, np.ndarray):
        return value[rows]
    return type(value)(**{f.name: _take(getattr(value, f.name), rows) for f in fields(value)})


def _put(value: Any, rows: Whole, part: Any) -> Any:
    """Everything with some rows replaced; numbers that all share come from the part."""
    if value is None or isinstance(value, int):
        return part
    if isinstance(value, tuple):
        return tuple(_put(v, rows, p) for v, p in zip(value, part, strict=True))
    if isinstance(value, np.ndarray):
        result = value.copy()
        result[rows] = part
        return result
    return type(value)(
        **{f.name: _put(getattr(value, f.name), rows, getattr(part, f.name)) for f in fields(value)}
    )
