"""Exploration: many short simulations that end where the potential no longer knows.

Every start is simulated at every temperature, each run with a seed of its own. What was visited,
thinned, is a pool to choose labels from; where the stop rule ended a run is the most interesting
frame of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from ase import Atoms

from bayrace.data.distances import Gap
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings, ExplodedError, Look, simulate
from bayrace.simulate.stop import StopRule

Reason = Literal["finished", "uncertain", "exploded"]


@dataclass(frozen=True, eq=False)
class Visit:
    """A structure that a run has passed, and what the potential said of it."""

    frame: Frame  # without labels; its source names the run, its index is the step
    time: float  # fs
    temperature: float  # K, of that moment
    energy_std: float  # eV, total
    forces_std: float  # eV/Å, largest of any component
    risk: float  # probability of the stop rule; nan without one
    broken: bool  # whether it broke the rule


@dataclass(frozen=True, eq=False)
class Excursion:
    """One run."""

    start: str  # the structure it began from
    temperature: float  # K, of the thermostat
    seed: int
    visits: list[Visit]  # every few steps; the last is where it ended, unless it exploded
    reason: Reason
    message: str  # why, in a sentence
    steps: int  # done


def explore(
    potential: Potential,
    starts: Sequence[Frame],
    temperatures: Sequence[float],
    settings: DynamicsSettings,
    *,
    rule: StopRule | None,
    every: int,
    repeats: int = 1,
    progress: Callable[[Excursion], None] | None = None,
) -> list[Excursion]:
    """Simulate every start at every temperature (K), `repeats` times.

    A frame is kept every `every` steps, and the one where a run ended. `settings.temperature` and
    `settings.seed` are replaced, the latter by one that depends on it and on the run only.
    """
    if not starts or not temperatures:
        raise ValueError(
            f"{len(starts)} starts and {len(temperatures)} temperatures: give at least one of each"
        )
    if every < 1 or repeats < 1:
        raise ValueError(f"every={every}, repeats={repeats}: both must be at least 1")
    found = []
    for start, planned in plan(starts, temperatures, settings, repeats=repeats):
        found.append(excursion(potential, start, planned, rule=rule, every=every))
        if progress is not None:
            progress(found[-1])
    return found


def plan(
    starts: Sequence[Frame],
    temperatures: Sequence[float],
    settings: DynamicsSettings,
    *,
    repeats: int = 1,
) -> Iterator[tuple[Frame, DynamicsSettings]]:
    """The runs of an exploration, each with its seed: for those who spread them over processes."""
    for repeat in range(repeats):
        for place, start in enumerate(starts):
            for number, temperature in enumerate(temperatures):
                entropy = [settings.seed, repeat, place, number]
                seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
                yield start, replace(settings, temperature=temperature, seed=seed)


def excursion(
    potential: Potential,
    start: Frame,
    settings: DynamicsSettings,
    *,
    rule: StopRule | None,
    every: int,
    min_steps: int = 0,
) -> Excursion:
    """One run to its end; the rule stops it after `min_steps` steps or later."""
    visits: list[Visit] = []
    reason: Reason = "finished"
    message, last = f"{settings.steps} steps done", None
    watch = rule if rule is None or min_steps == 0 else replace(rule, action="record")
    try:
        for look in simulate(potential, start, settings, rule=watch):
            last = look
            done = (
                rule is not None
                and rule.action == "stop"
                and look.step >= min_steps
                and look.broken
            )
            kept = look.broken and look.step >= min_steps
            if look.step % every == 0 or look.step == settings.steps or kept:
                visits.append(_visit(look, start, settings))
            if done and rule is not None:
                reason, message = "uncertain", describe(look, rule)
                break
    except ExplodedError as error:
        reason, message = "exploded", str(error)
    return Excursion(
        start=start.origin,
        temperature=settings.temperature,
        seed=settings.seed,
        visits=visits,
        reason=reason,
        message=message,
        steps=0 if last is None else last.step,
    )


def describe(look: Look, rule: StopRule) -> str:
    """Why a rule acted, in a sentence."""
    risk = look.risk
    assert risk is not None
    moment = f"step {look.step} ({look.time:.4g} fs)"
    if not rule.broken(risk):
        assert look.gap is not None
        return f"{moment}: {describe_gap(look.atoms, look.gap)}"
    symbol = look.atoms.symbols[risk.atom]
    whose = "the worst atom" if rule.over_atoms == "max" else "some atom"
    return (
        f"{moment}: the force on {whose} is wrong by more than "
        f"{rule.max_force_error:g} eV/Å with probability {risk.probability:.3g}, above "
        f"{rule.probability:g}; likeliest that on atom {risk.atom} ({symbol})"
    )


def describe_gap(atoms: Atoms, gap: Gap) -> str:
    """How far a distance is from those of the training data."""
    names = [f"{place} ({atoms.symbols[place]})" for place in gap.atoms]
    known = "does not exist"
    if math.isfinite(gap.size):
        known = f"makes a gap of {gap.size:.3g} Å (a distance below all others counts more)"
    return (
        f"atoms {' and '.join(names)} are {gap.distance:.4g} Å apart; the third nearest such "
        f"distance of the training data {known}"
    )


def _visit(look: Look, start: Frame, settings: DynamicsSettings) -> Visit:
    source = f"{start.origin} at {settings.temperature:g} K, seed {settings.seed}"
    return Visit(
        frame=frame_from_atoms(look.atoms, keys=None, source=source, index=look.step),
        time=look.time,
        temperature=look.temperature,
        energy_std=look.energy_std,
        forces_std=look.forces_std,
        risk=float("nan") if look.risk is None else look.risk.probability,
        broken=look.broken,
    )
