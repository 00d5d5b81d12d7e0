"""Ethanol at 1000 K by GFN2-xTB, to train a potential that may run there.

    python benchmarks/active/hot_data.py [--output runs/stop-rule/hot.xyz]

Langevin dynamics of as many molecules as there are trajectories, a frame every 25 fs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta
from tblite.ase import TBLite

from bayrace.data.embedded import embedded

STEP, FRICTION = 0.5, 0.02  # fs, 1/fs
WARMING, EVERY = 1000, 50  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/stop-rule/hot.xyz"))
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--frames", type=int, default=50, help="of each")
    parser.add_argument("--temperature", type=float, default=1000.0, help="K")
    options = parser.parse_args()
    starts = ase.io.read(embedded("ethanol-train"), f"::{400 // options.trajectories}")
    frames = []
    for seed, start in enumerate(starts[: options.trajectories]):
        frames += trajectory(start, options.temperature, options.frames, seed)
        print(f"trajectory {seed + 1}: {len(frames)} frames", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    ase.io.write(options.output, frames)


def trajectory(start: Atoms, temperature: float, count: int, seed: int) -> list[Atoms]:
    random = np.random.default_rng(seed)
    atoms = Atoms(start.numbers, start.positions, calculator=TBLite(method="GFN2-xTB", verbosity=0))
    thermalize_momenta(atoms, temperature_K=temperature, rng=random)
    options = {"temperature_K": temperature, "friction": FRICTION / units.fs, "fixcm": False}
    dynamics = Langevin(atoms, STEP * units.fs, rng=random, **options)
    dynamics.run(WARMING)
    frames = []
    for _ in range(count):
        dynamics.run(EVERY)
        frame = Atoms(atoms.numbers, atoms.positions)
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        frame.calc = SinglePointCalculator(frame, energy=energy, forces=forces)
        frames.append(frame)
    return frames


if __name__ == "__main__":
    main()
