"""A short molecular dynamics run with a potential, for the demo."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ase import units
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import Stationary, thermalize_momenta

from bayrace.data.read import Frame, frame_to_atoms
from bayrace.deploy.ase import Calculator
from bayrace.potential import Potential

EVERY = 5  # steps between records


@dataclass
class Trajectory:
    """What was recorded on the way."""

    time: list[float] = field(default_factory=list)  # fs
    potential_energy: list[float] = field(default_factory=list)  # eV
    temperature: list[float] = field(default_factory=list)  # K
    force_spread: list[float] = field(default_factory=list)  # eV/Å, largest σ of any component
    seconds: float = 0.0  # it took


def langevin(
    potential: Potential,
    start: Frame,
    *,
    temperature: float,
    timestep: float,
    steps: int,
    seed: int,
    progress: Callable[[int], None],
) -> Trajectory:
    """Langevin dynamics at `temperature` (K) with steps of `timestep` fs."""
    atoms: Any = frame_to_atoms(start)  # ASE has no types
    calculator = atoms.calc = Calculator(potential)
    random = np.random.default_rng(seed)
    thermalize_momenta(atoms, temperature_K=temperature, rng=random)
    Stationary(atoms)
    dynamics: Any = Langevin(
        atoms,
        timestep * units.fs,
        temperature_K=temperature,
        friction=0.01 / units.fs,
        fixcm=False,
        rng=random,
    )
    record = Trajectory()

    def observe() -> None:
        record.time.append(dynamics.nsteps * timestep)
        record.potential_energy.append(float(atoms.get_potential_energy()))
        record.temperature.append(float(atoms.get_temperature()))
        record.force_spread.append(float(calculator.results["forces_uncertainty"].max()))
        progress(dynamics.nsteps)

    begin = time.monotonic()
    dynamics.attach(observe, interval=EVERY)
    dynamics.run(steps)
    record.seconds = time.monotonic() - begin
    return record
