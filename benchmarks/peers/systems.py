"""The structures that the speed benchmark evaluates. ASE and NumPy only."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.build import bulk
from common import Statistics

BATCH = 5  # structures of a training step
CUTOFF = 5.0  # Å
MOLECULES = {"3bpa-1": 1, "3bpa-5": BATCH}  # structures of a batch
CRYSTALS = {"si-64": 2, "si-216": 3, "si-512": 4, "si-1000": 5}  # cubic cells along each edge
SILICON = Statistics(
    elements=[14], references=[0.0], force_rms=1.0, mean_neighbours=28.0, cutoff=CUTOFF
)
SLOW = 1e4  # factor on the masses, see `moving`


def atoms_of(name: str) -> int:
    """Atoms of a named system."""
    return int(name.removeprefix("si-")) if name in CRYSTALS else 27 * MOLECULES[name]


def structures(name: str, data: Path) -> list[Atoms]:
    """The frames of a named system: 3BPA molecules, or rattled diamond silicon."""
    if name in MOLECULES:
        return ase.io.read(data / "train.xyz", f":{MOLECULES[name]}")
    cell = bulk("Si", "diamond", a=5.43, cubic=True).repeat(CRYSTALS[name])
    cell.rattle(0.1, seed=0)
    return [cell]


def moving(atoms: Atoms) -> Atoms:
    """The structure at 300 K, too heavy for the forces of random weights to tear it apart."""
    moved = atoms.copy()
    spread = np.sqrt(units.kB * 300 / moved.get_masses())[:, None]
    moved.set_masses(SLOW * moved.get_masses())
    moved.set_velocities(spread * np.random.default_rng(0).standard_normal((len(moved), 3)))
    return moved


TIME_STEP = 0.5 * units.fs
