"""Make the data sets shipped with bayrace: GFN-xTB dynamics of ethanol and of solid ammonia.

    python scripts/make_embedded_data.py          # write src/bayrace/data/embedded/*.xyz.gz
    python scripts/make_embedded_data.py --check  # recompute the labels of the files there

Every trajectory has a seed of its own and belongs to one set only, so that no test frame is a
neighbour in time of a training frame. Positions and cells are rounded to 1e-6 Å before they are
labelled: the labels belong to the numbers in the file. On one machine two runs give the same bytes;
another processor or BLAS may round differently, which the dynamics amplifies, so `--check`
compares labels instead of bytes.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # several threads would sum in an order of their own

import argparse
import gzip
import io
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta
from ase.optimize import BFGS
from ase.spacegroup import crystal
from tblite.ase import TBLite

FOLDER = Path(__file__).resolve().parents[1] / "src" / "bayrace" / "data" / "embedded"
ACCURACY = 0.01  # of tblite's self-consistency, a hundred times tighter than its default
DECIMALS = 6  # Å and eV/Å; energies and stresses are kept to 1e-8 and 1e-9


@dataclass(frozen=True)
class System:
    """A substance, its Hamiltonian and how its dynamics is sampled."""

    name: str
    method: str
    start: Callable[[np.random.Generator], Atoms]
    timestep: float  # fs
    friction: float  # 1/fs
    equilibration: int  # steps before the first frame
    interval: int  # steps between frames


@dataclass(frozen=True)
class Part:
    """One file: trajectories at one temperature."""

    system: System
    name: str
    temperature: float  # K
    trajectories: int
    frames: int  # of each trajectory

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.system.name}-{self.name}.xyz.gz"


def main() -> int:
    options = _arguments()
    parts = [part for part in PARTS if options.only in ("all", part.system.name)]
    if options.check:
        return _check([part.path for part in parts])
    FOLDER.mkdir(parents=True, exist_ok=True)
    for system in {part.system.name: part.system for part in parts}.values():
        _save(FOLDER / f"{system.name}-atoms.xyz.gz", list(_isolated(system)))
    jobs = [(part, number) for part in parts for number in range(part.trajectories)]
    collected: list[Atoms] = []
    started = time.monotonic()
    with ProcessPoolExecutor(options.workers) as pool:
        for done, (frames, temperature) in enumerate(pool.map(_trajectory, jobs), start=1):
            part, number = jobs[done - 1]
            collected += frames
            elapsed = time.monotonic() - started
            print(
                f"[{done}/{len(jobs)}] {part.path.name}: {len(frames)} frames at "
                f"{temperature:.0f} K, {elapsed:.0f} s, about "
                f"{elapsed / done * (len(jobs) - done):.0f} s left",
                flush=True,
            )
            if number == part.trajectories - 1:
                _save(part.path, collected)
                collected = []
    return 0


def ethanol(rng: np.random.Generator) -> Atoms:
    """A relaxed molecule in a random orientation."""
    atoms = molecule("CH3CH2OH")
    atoms.calc = TBLite(method="GFN2-xTB", verbosity=0, accuracy=ACCURACY)
    BFGS(atoms, logfile=None).run(fmax=0.01, steps=200)
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    atoms.positions = (atoms.positions - atoms.get_center_of_mass()) @ rotation
    return Atoms(atoms.numbers, atoms.positions)


def ammonia(rng: np.random.Generator) -> Atoms:
    """Ammonia I (P2_1 3, four molecules), strained at random: 2 % in length, 1 % in shear."""
    sites = [(0.2107, 0.2107, 0.2107), (0.3689, 0.2671, 0.1159)]
    atoms = crystal(["N", "H"], sites, spacegroup=198, cellpar=[5.13] * 3 + [90] * 3)
    shear = rng.normal(scale=0.01, size=(3, 3))
    strain = np.diag(rng.normal(scale=0.02, size=3)) + np.triu(shear, 1) + np.triu(shear, 1).T
    atoms.set_cell(np.round(atoms.cell.array @ (np.eye(3) + strain), DECIMALS), scale_atoms=True)
    return Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=True)


ETHANOL = System(
    "ethanol",
    "GFN2-xTB",
    ethanol,
    timestep=0.5,
    friction=0.02,
    equilibration=2000,
    interval=200,
)
AMMONIA = System(
    "ammonia",
    "GFN1-xTB",
    ammonia,
    timestep=1.0,
    friction=0.05,  # forgets fast: a step costs fifty times that of ethanol
    equilibration=100,
    interval=20,
)
PARTS = (
    Part(ETHANOL, "train", 300.0, trajectories=8, frames=50),
    Part(ETHANOL, "valid", 300.0, trajectories=2, frames=25),
    Part(ETHANOL, "test", 300.0, trajectories=4, frames=25),
    Part(ETHANOL, "hot", 1000.0, trajectories=4, frames=25),
    Part(AMMONIA, "train", 150.0, trajectories=10, frames=10),
    Part(AMMONIA, "valid", 150.0, trajectories=2, frames=10),
    Part(AMMONIA, "test", 150.0, trajectories=3, frames=10),
    Part(AMMONIA, "hot", 450.0, trajectories=4, frames=10),
)


def _trajectory(job: tuple[Part, int]) -> tuple[list[Atoms], float]:
    """Labelled frames and their mean kinetic temperature."""
    part, number = job
    system = part.system
    seed = [ord(letter) for letter in part.path.name] + [number]
    rng = np.random.default_rng(seed)
    atoms = system.start(rng)
    atoms.calc = TBLite(method=system.method, verbosity=0, accuracy=ACCURACY)
    thermalize_momenta(atoms, part.temperature, rng=rng)
    dynamics = Langevin(
        atoms,
        timestep=system.timestep * units.fs,
        temperature_K=part.temperature,
        friction=system.friction / units.fs,
        fixcm=False,  # ASE's fixcm=True samples a slightly wrong distribution for few atoms
        rng=rng,
    )
    dynamics.run(system.equilibration)
    frames, temperatures = [], []
    for _ in range(part.frames):
        dynamics.run(system.interval)
        temperatures.append(atoms.get_temperature())
        centre = 0.0 if atoms.pbc.any() else atoms.get_center_of_mass()  # a molecule drifts
        positions = np.round(atoms.positions - centre, DECIMALS)
        frame = Atoms(atoms.numbers, positions, cell=atoms.cell, pbc=atoms.pbc)
        frame.info = {"config_type": f"{part.temperature:.0f}K", "trajectory": number}
        frames.append(_labelled(frame, system.method))
    return frames, float(np.mean(temperatures))


def _labelled(frame: Atoms, method: str) -> Atoms:
    """The frame with energy, forces and, if periodic, stress from a self-consistency begun anew."""
    labelled = frame.copy()
    labelled.calc = TBLite(method=method, verbosity=0, accuracy=ACCURACY)
    results = {
        "energy": round(float(labelled.get_potential_energy()), 8),
        "forces": np.round(labelled.get_forces(), DECIMALS),
    }
    if labelled.pbc.all():
        results["stress"] = np.round(labelled.get_stress(), 9)
    labelled.calc = SinglePointCalculator(labelled, **results)
    return labelled


def _isolated(system: System) -> Iterator[Atoms]:
    """Free atoms in their ground-state multiplicity, for reference energies."""
    multiplicity = {"H": 2, "C": 3, "N": 4, "O": 3}
    for symbol in sorted(set(system.start(np.random.default_rng(0)).symbols)):
        atom = Atoms(symbol, [(0.0, 0.0, 0.0)], info={"config_type": "IsolatedAtom"})
        atom.calc = TBLite(method=system.method, verbosity=0, multiplicity=multiplicity[symbol])
        energy = round(float(atom.get_potential_energy()), 8)
        atom.calc = SinglePointCalculator(atom, energy=energy, forces=np.zeros((1, 3)))
        yield atom


def _save(path: Path, frames: list[Atoms]) -> None:
    text = io.StringIO()
    write(text, frames, format="extxyz")
    path.write_bytes(gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0))
    print(f"{path.name}: {len(frames)} frames, {path.stat().st_size / 1000:.0f} kB", flush=True)


def _check(paths: list[Path]) -> int:
    """Relabel what the files hold; 1 if a label is off by more than rounding and convergence."""
    worst = 0.0
    for path in paths:
        method = next(part.system.method for part in PARTS if part.path == path)
        off = 0.0
        for frame in read(path, ":"):
            again = _labelled(Atoms(frame), method)
            off = max(off, abs(again.get_potential_energy() - frame.get_potential_energy()))
            off = max(off, np.abs(again.get_forces() - frame.get_forces()).max())
            if frame.pbc.all():
                off = max(off, np.abs(again.get_stress() - frame.get_stress()).max())
        print(f"{path.name}: labels reproduced to {off:.1e} (eV, eV/Å, eV/Å³)", flush=True)
        worst = max(worst, off)
    return int(worst > 1e-5)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("all", "ethanol", "ammonia"), default="all")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--check", action="store_true", help="recompute labels, write nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
