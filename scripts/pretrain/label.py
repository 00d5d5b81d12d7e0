"""Dynamics of molecules by GFN1-xTB from 300 to 2200 K, for the weights that trainings start from.

    python scripts/pretrain/label.py molecules.json part0.xyz --part 0/2 --frames 44
    python scripts/pretrain/label.py molecules.json part1.xyz --part 1/2 --frames 44

Every molecule, and sixty pairs of small ones behind them, is heated up, and each eighth step is
kept: 44 frames of 270 molecules take seven minutes of one core. GFN1 and not GFN2, which labels the
embedded ethanol: no training of the demo or the tests shall start from its own method.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import CalculationFailed
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta
from tblite.ase import TBLite

EVERY = 8  # steps of 1 fs between frames
COLD, HOT = 300.0, 2200.0  # K
PAIRS, SMALL, APART = 60, 10, 2.0  # how many, of at most so many atoms, Å
LARGEST_FORCE = 40.0  # eV/Å; what is torn apart teaches nothing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("molecules", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--part", default="0/1", help="1/2: the second of two parts")
    parser.add_argument("--frames", type=int, required=True, help="of each molecule")
    parser.add_argument("--first", type=int, default=0, help="leave out the molecules before this")
    options = parser.parse_args()
    molecules = json.loads(options.molecules.read_text())
    part, parts = map(int, options.part.split("/"))
    for index in range(options.first + part, len(molecules) + PAIRS, parts):
        try:
            frames = heated(structure(molecules, index), options.frames, seed=index)
        except CalculationFailed as error:
            print(index, error, flush=True)
            continue
        write(options.output, frames, append=True, format="extxyz")


def structure(molecules: Sequence[dict[str, Any]], index: int) -> Atoms:
    """A molecule, or behind the last of them a pair of small ones."""
    if index < len(molecules):
        return Atoms(molecules[index]["numbers"], molecules[index]["positions"])
    random = np.random.default_rng(5000 + index - len(molecules))
    small = [one for one in molecules if len(one["numbers"]) <= SMALL]
    first, second = (small[place] for place in random.integers(len(small), size=2))
    one, other = (np.array(each["positions"]) for each in (first, second))
    one, other = one - one.mean(0), other - other.mean(0)
    other = other @ np.linalg.qr(random.normal(size=(3, 3)))[0].T
    way = random.normal(size=3)
    way /= np.linalg.norm(way)
    for distance in np.arange(0, 12, 0.1):
        moved = other + distance * way
        if np.linalg.norm(one[:, None] - moved[None], axis=-1).min() > APART:
            break
    return Atoms(first["numbers"] + second["numbers"], np.concatenate([one, moved]))


def heated(atoms: Atoms, count: int, *, seed: int) -> list[Atoms]:
    """Labelled frames of a structure that gets hot."""
    random = np.random.default_rng(seed)
    atoms.calc = TBLite(method="GFN1-xTB", verbosity=0)
    thermalize_momenta(atoms, COLD, rng=random)
    dynamics = Langevin(
        atoms, 1.0 * units.fs, temperature_K=COLD, friction=0.03 / units.fs, rng=random
    )
    dynamics.run(10)
    frames = []
    for step in range(count):
        dynamics.set_temperature(temperature_K=COLD + (step / (count - 1)) ** 1.5 * (HOT - COLD))
        dynamics.run(EVERY)
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        if np.abs(forces).max() <= LARGEST_FORCE:
            frame = Atoms(atoms.numbers, atoms.positions)
            frame.calc = SinglePointCalculator(frame, energy=energy, forces=forces)
            frames.append(frame)
    return frames


if __name__ == "__main__":
    main()
