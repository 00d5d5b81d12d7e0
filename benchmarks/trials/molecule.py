"""Frames to choose defaults on, which no table of results uses: two molecules at 300 to 1200 K.

    python benchmarks/trials/molecule.py runs/trials --qm9 ../shared/data/qm9/qm9_13845.npz
    python benchmarks/trials/molecule.py runs/flexible

C7H11NO of QM9 (20 atoms), which is stiff, or N-methyl-2-anilinoacetamide (24 atoms), which is not,
in Langevin dynamics by GFN1-xTB: 500 frames at 300 K to train on and 100 more at each temperature.
About eight minutes of one core.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta
from ase.optimize import BFGS
from tblite.ase import TBLite

PLACE = 13130  # of the stiff molecule in qm9_13845.npz
FLEXIBLE = Path(__file__).with_name("flexible.xyz")


@dataclass(frozen=True)
class Part:
    """One file."""

    name: str
    temperature: float  # K
    frames: int
    interval: int  # steps of 0.5 fs between them
    seed: int


PARTS = (
    Part("train", 300, 500, 50, seed=1),
    Part("300K", 300, 100, 50, seed=4),
    Part("600K", 600, 100, 30, seed=2),
    Part("1200K", 1200, 100, 30, seed=3),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--qm9", type=Path, help="qm9_13845.npz; without, the flexible molecule")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    start = relaxed(read(FLEXIBLE) if options.qm9 is None else from_qm9(options.qm9))
    for part in PARTS:
        path = options.output / f"{part.name}.xyz"
        if not path.exists():
            write(path, sample(start, part))
        print(path, flush=True)


def from_qm9(archive: Path) -> Atoms:
    """The stiff molecule."""
    with np.load(archive, allow_pickle=True) as values:
        numbers, positions = values["Z"][PLACE], values["R"][PLACE]
    return Atoms(numbers[numbers > 0], positions[numbers > 0])


def relaxed(atoms: Atoms) -> Atoms:
    """The molecule at its minimum."""
    atoms.calc = calculator()
    BFGS(atoms, logfile=None).run(fmax=0.02)
    return atoms


def sample(start: Atoms, part: Part) -> list[Atoms]:
    """Frames of one trajectory in random order."""
    atoms, random = start.copy(), np.random.default_rng(part.seed)
    atoms.calc = calculator()
    thermalize_momenta(atoms, part.temperature, rng=random)
    dynamics = Langevin(
        atoms,
        0.5 * units.fs,
        temperature_K=part.temperature,
        friction=0.01 / units.fs,
        fixcm=False,
        rng=random,
    )
    dynamics.run(2000)
    frames = []
    for _ in range(part.frames):
        dynamics.run(part.interval)
        frame = atoms.copy()
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        frame.calc = SinglePointCalculator(frame, **labels)
        frames.append(frame)
    return [frames[place] for place in random.permutation(len(frames))]


def calculator() -> TBLite:
    return TBLite(method="GFN1-xTB", verbosity=0)


if __name__ == "__main__":
    main()
