"""The data sets of the benchmarks, as files that every code reads.

python benchmarks/peers/data.py ../shared/data .bench/data

Writes {3bpa,aspirin}/{train,valid,test_*}.xyz in eV and eV/Å with the keys `energy` and `forces`.
Needs ASE and NumPy only, so that it runs in any of the environments.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.units import kcal, mol

VALID = 50  # frames
SEED = 0


def main(source: Path, target: Path) -> None:
    write(target / "3bpa", three_bpa(source / "3bpa"))
    write(target / "aspirin", aspirin(source / "rmd17"))


def three_bpa(folder: Path) -> dict[str, list[Atoms]]:
    """450 training and 50 validation frames of 300 K; tests at three temperatures."""
    train, valid = divide(ase.io.read(folder / "train_300K.xyz", ":"))
    tests = {"300K": "test_300K", "600K": "pool_600K", "1200K": "pool_1200K"}
    named = {
        f"test_{name}": ase.io.read(folder / f"{file}.xyz", ":") for name, file in tests.items()
    }
    return {"train": train, "valid": valid, **named}


def aspirin(folder: Path) -> dict[str, list[Atoms]]:
    """950 training and 50 validation frames; 1000 test frames."""
    train, valid = divide(from_npz(folder / "rmd17_aspirin_train_01.npz"))
    return {
        "train": train,
        "valid": valid,
        "test_500K": from_npz(folder / "rmd17_aspirin_test_01.npz"),
    }


def from_npz(path: Path) -> list[Atoms]:
    """Frames of a revised-MD17 archive, converted from kcal/mol."""
    archive = np.load(path)
    unit = kcal / mol
    numbers = archive["nuclear_charges"]
    frames = []
    for positions, energy, forces in zip(
        archive["coords"], archive["energies"], archive["forces"], strict=True
    ):
        atoms = Atoms(numbers, positions)
        atoms.calc = SinglePointCalculator(atoms, energy=energy * unit, forces=forces * unit)
        frames.append(atoms)
    return frames


def divide(frames: list[Atoms]) -> tuple[list[Atoms], list[Atoms]]:
    """Training and validation frames, the same in every run."""
    order = np.random.default_rng(SEED).permutation(len(frames))
    return [frames[i] for i in order[VALID:]], [frames[i] for i in order[:VALID]]


def write(folder: Path, sets: dict[str, list[Atoms]]) -> None:
    """One file per set."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frames in sets.items():
        ase.io.write(folder / f"{name}.xyz", frames)
        print(f"{folder / name}.xyz: {len(frames)} frames")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder with 3bpa and rmd17")
    parser.add_argument("target", type=Path, help="folder to write to")
    options = parser.parse_args()
    main(options.source, options.target)
