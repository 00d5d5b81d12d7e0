"""Solid solutions of copper and gold by EMT: known at 400 K, unknown at 1400 K and strained.

python benchmarks/sigma/alloy.py runs/alloy          writes train, test, hot and strained .xyz
bayrace train benchmarks/sigma/alloy.yaml
python benchmarks/sigma/table.py runs/sigma/alloy-0
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta

SETS = {  # frames, K, standard deviation of the strain
    "train": (200, 400, 0.01),
    "test": (60, 400, 0.01),
    "hot": (60, 1400, 0.01),
    "strained": (60, 400, 0.06),
}
FROM_ONE = 5  # frames of a trajectory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(3)
    for name, (count, temperature, strain) in SETS.items():
        frames = [
            frame
            for _ in range(count // FROM_ONE)
            for frame in trajectory(random, temperature=temperature, strain=strain)
        ]
        ase.io.write(options.folder / f"{name}.xyz", frames)
        print(f"{name}: {len(frames)} cells of 32 atoms", flush=True)


def trajectory(random: np.random.Generator, *, temperature: float, strain: float) -> list[Atoms]:
    """A random alloy in a randomly strained cell, 80 fs from one frame to the next."""
    atoms = alloy(random, strain=strain)
    atoms.calc = EMT()
    thermalize_momenta(atoms, temperature, rng=random)
    dynamics = Langevin(
        atoms,
        2 * units.fs,
        temperature_K=temperature,
        friction=0.02 / units.fs,
        rng=random,
        fixcm=False,
    )
    dynamics.run(100)
    frames = []
    for _ in range(FROM_ONE):
        dynamics.run(40)
        frame = atoms.copy()
        del frame.arrays["momenta"]
        labels = {name: atoms.calc.get_property(name) for name in ("energy", "forces", "stress")}
        frame.calc = SinglePointCalculator(frame, **labels)
        frames.append(frame)
    return frames


def alloy(random: np.random.Generator, *, strain: float) -> Atoms:
    """32 sites of fcc, 20 to 80 % of gold."""
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    gold = random.uniform(0.2, 0.8)
    atoms.set_chemical_symbols(list(np.where(random.random(32) < gold, "Au", "Cu")))
    moved = np.eye(3) + strain * random.normal(size=(3, 3))
    length = 2 * (3.61 + 0.47 * gold)  # Å
    atoms.set_cell(length * (moved + moved.T) / 2, scale_atoms=True)
    return atoms


if __name__ == "__main__":
    main()
