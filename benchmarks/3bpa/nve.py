"""Energy conservation: constant-energy dynamics of 3BPA at 300 K with a trained potential.

python benchmarks/3bpa/nve.py runs/3bpa-mse/model.bayrace --steps 10000 --json nve.json

After a thermostatted start the total energy is recorded every 10 steps. Reported are the slope of a
straight line through it (the drift), the same for each half of the run (a steady trend would show
in both), and the fluctuation about the line.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from ase import units
from ase.io import read
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import Stationary, ZeroRotation, thermalize_momenta
from ase.md.verlet import VelocityVerlet

import bayrace


def main() -> None:
    arguments = parse()
    atoms = read(arguments.start, index=0)
    atoms.calc = bayrace.Calculator(arguments.model, dtype=arguments.dtype, uncertainty=False)
    random = np.random.default_rng(0)
    thermalize_momenta(atoms, 300, rng=random)
    warm = Langevin(
        atoms,
        0.5 * units.fs,
        temperature_K=300,
        friction=0.02 / units.fs,
        fixcm=False,
        rng=random,
    )
    warm.run(arguments.warm)
    Stationary(atoms)
    ZeroRotation(atoms)
    dynamics = VelocityVerlet(atoms, arguments.timestep * units.fs)
    times, totals, temperatures = [], [], []

    def record() -> None:
        times.append(dynamics.get_time() / (1000 * units.fs))
        totals.append(atoms.get_total_energy())
        temperatures.append(atoms.get_temperature())

    dynamics.attach(record, interval=10)
    began = time.perf_counter()
    dynamics.run(arguments.steps)
    seconds = time.perf_counter() - began
    result = summarise(np.array(times), np.array(totals) / len(atoms) * 1000)
    result |= {
        "steps": arguments.steps,
        "timestep_fs": arguments.timestep,
        "dtype": arguments.dtype,
        "temperature_K": float(np.mean(temperatures)),
        "ms_per_step": 1000 * seconds / arguments.steps,
    }
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def summarise(times: np.ndarray, energies: np.ndarray) -> dict[str, float]:
    """Slopes in meV/atom/ps and the spread about the line in meV/atom."""
    half = len(times) // 2
    slope, level = np.polyfit(times, energies, 1)
    return {
        "drift_meV_per_atom_per_ps": float(slope),
        "first_half": float(np.polyfit(times[:half], energies[:half], 1)[0]),
        "second_half": float(np.polyfit(times[half:], energies[half:], 1)[0]),
        "fluctuation_meV_per_atom": float(np.std(energies - slope * times - level)),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--start", default="../shared/data/3bpa/test_300K.xyz")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--warm", type=int, default=2000, help="Langevin steps before the run")
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
