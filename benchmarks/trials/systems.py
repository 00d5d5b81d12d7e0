"""Systems to choose the growth of σ on, which no table of results uses: frames and configurations.

    python benchmarks/trials/systems.py runs/systems --data ../shared/data          (15 minutes)
    for each in runs/systems/*.yaml; do bayrace train $each; done                   (15 minutes)
    python benchmarks/sigma/table.py "runs/systems/gemelt-run"                      and the others

Silver and palladium, nickel and aluminium, platinum and clusters of copper and nickel by EMT;
clusters of water and the two molecules of molecule.py by GFN2-xTB; germanium of mlearn, from its
crystals and from its melt. Each is trained on cold structures; hot, strained, larger ones and
those of other kinds are test sets.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import molecule as trial
import numpy as np
from ase import Atoms, units
from ase.build import bulk
from ase.build import molecule as built
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.cluster import Octahedron
from ase.io import read, write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta
from ase.optimize import BFGS
from tblite.ase import TBLite

Sets = Iterator[tuple[str, list[Atoms]]]
Random = np.random.Generator

EPOCHS = {"gecold": 200, "gemelt": 200, "stiff": 100, "flexible": 100, "water": 100}  # else 150
CONFIG = """\
seed: 0
output: {folder}/{name}-run
data: {{train: {folder}/{name}/train.xyz, test: {{{tests}}}}}
train: {{max_epochs: {epochs}, valid_every: 5, threads: 1}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder with qm9/ and mlearn/")
    parser.add_argument("--only", nargs="+", help="names of systems")
    options = parser.parse_args()
    for name, sets in systems(options.data).items():
        if options.only and name not in options.only:
            continue
        (options.output / name).mkdir(parents=True, exist_ok=True)
        tests = []
        for part, frames in sets():
            path = options.output / name / f"{part}.xyz"
            write(path, frames)
            tests += [f"{part}: {path}"] if part != "train" else []
            print(f"{path}: {len(frames)} structures", flush=True)
        text = CONFIG.format(
            folder=options.output,
            name=name,
            tests=", ".join(tests),
            epochs=EPOCHS.get(name, 150),
        )
        (options.output / f"{name}.yaml").write_text(text, encoding="utf-8")


def systems(data: Path | None) -> Mapping[str, Callable[[], Sets]]:
    """How the sets of each system are made; without `data` those that need none."""
    found: dict[str, Callable[[], Sets]] = {
        "agpd": lambda: metal({"Ag": 4.09, "Pd": 3.89}, hot=1400),
        "nial": lambda: metal({"Ni": 3.52, "Al": 4.05}, hot=1400),
        "pt": lambda: metal({"Pt": 3.92}, hot=2000),
        "cluster": clusters,
        "water": waters,
        "flexible": lambda: molecule(read(trial.FLEXIBLE)),
    }
    if data is not None:
        germanium = data / "mlearn" / "Ge_mlearn.xyz"
        found |= {
            "stiff": lambda: molecule(trial.from_qm9(data / "qm9" / "qm9_13845.npz")),
            "gecold": lambda: mlearn(germanium, cold, held_out=20),
            "gemelt": lambda: mlearn(germanium, molten, held_out=12),
        }
    return found


def metal(lattice: Mapping[str, float], *, hot: float) -> Sets:
    """Random alloys on 32 sites of fcc at 400 K; unknown are hot and strained cells."""
    random = np.random.default_rng(7)
    for name, count, kelvin, strain in (
        ("train", 200, 400, 0.01),
        ("test", 60, 400, 0.01),
        ("hot", 60, hot, 0.01),
        ("strained", 60, 400, 0.06),
    ):
        frames = []
        for _ in range(count // 5):
            cell = alloy(lattice, strain, random)
            frames += sampled(cell, EMT(), kelvin, random, count=5, every=40, stress=True)
        yield name, frames


def alloy(lattice: Mapping[str, float], strain: float, random: Random) -> Atoms:
    """32 sites, 20 to 80 % of the second metal, if any."""
    first, *_, last = [*lattice, *lattice]
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    part = random.uniform(0.2, 0.8) if first != last else 0.0
    atoms.set_chemical_symbols(list(np.where(random.random(32) < part, last, first)))
    moved = np.eye(3) + strain * random.normal(size=(3, 3))
    length = 2 * (lattice[first] + (lattice[last] - lattice[first]) * part)  # Å
    atoms.set_cell(length * (moved + moved.T) / 2, scale_atoms=True)
    return atoms


def clusters() -> Sets:
    """Copper and nickel, 13 to 25 atoms at 300 K; unknown are 1000 K and larger ones."""
    random = np.random.default_rng(8)
    small = (13, 19, 25)
    for name, count, kelvin, sizes in (
        ("train", 200, 300, small),
        ("test", 60, 300, small),
        ("hot", 60, 1000, small),
        ("large", 40, 300, (55, 79)),
    ):
        frames = []
        for _ in range(count // 5):
            size = int(random.choice(sizes))
            whole = Octahedron("Cu", 7, cutoff=2)
            middle = whole.positions.mean(0) - 0.3 * random.normal(size=3)
            inner = np.argsort(np.linalg.norm(whole.positions - middle, axis=1))[:size]
            atoms = Atoms(whole.numbers[inner], whole.positions[inner])
            atoms.set_chemical_symbols(list(np.where(random.random(size) < 0.5, "Ni", "Cu")))
            frames += sampled(atoms, EMT(), kelvin, random, count=5, every=60)
        yield name, frames


def waters() -> Sets:
    """Three to five molecules at 300 K; unknown are 700 K and twelve molecules."""
    random = np.random.default_rng(10)
    few = (3, 4, 5)
    for name, count, kelvin, sizes in (
        ("train", 300, 300, few),
        ("test", 80, 300, few),
        ("hot", 80, 700, few),
        ("large", 40, 300, (12,)),
    ):
        frames = []
        for _ in range(count // 10):
            atoms = droplet(int(random.choice(sizes)), random)
            sampling = {"count": 10, "every": 40, "step": 0.5, "before": 200}
            frames += sampled(atoms, xtb(), kelvin, random, **sampling)
        yield name, frames


def droplet(molecules: int, random: Random) -> Atoms:
    """Molecules on a grid, turned at random and moved downhill."""
    atoms = Atoms()
    grid = [(i, j, k) for i in range(3) for j in range(3) for k in range(3)]
    for place in sorted(grid, key=lambda each: sum(x * x for x in each))[:molecules]:
        water = built("H2O")
        water.rotate(random.uniform(0, 360), random.normal(size=3))
        water.translate(np.array(place) * 2.9)
        atoms += water
    atoms.calc = xtb()
    BFGS(atoms, logfile=None).run(fmax=0.3, steps=40)
    return atoms


def molecule(atoms: Atoms) -> Sets:
    """One at 300 K; unknown are 600 and 1200 K."""
    random = np.random.default_rng(9)
    atoms.calc = xtb()
    BFGS(atoms, logfile=None).run(fmax=0.02)
    for name, count, kelvin, every in (
        ("train", 350, 300, 40),
        ("test", 80, 300, 40),
        ("600K", 80, 600, 30),
        ("hot", 80, 1200, 30),
    ):
        sampling = {"count": count, "every": every, "step": 0.5, "before": 400}
        yield name, sampled(atoms.copy(), xtb(), kelvin, random, **sampling)


def mlearn(path: Path, home: Callable[[str, int], bool], *, held_out: int) -> Sets:
    """Cells that are `home` by group and temperature; unknown are all others, by kind."""
    known, others = [], {}
    for frame in read(path, ":"):
        group, kelvin = str(frame.info["group"]), int(frame.info["T_K"])
        if home(group, kelvin):
            known.append(frame)
            continue
        kind = group.lower() + (str(kelvin) if group == "Vacancy" else "")
        if group == "AIMD-NVT":
            kind = "melt" if kelvin > 1000 else "crystal"
        others.setdefault(kind, []).append(frame)
    order = np.random.default_rng(11).permutation(len(known))
    yield "test", [known[k] for k in order[:held_out]]
    yield "train", [known[k] for k in order[held_out:]]
    yield from others.items()


def cold(group: str, kelvin: int) -> bool:
    """Crystals at 300 and 605 K, and strained ones."""
    return (group == "AIMD-NVT" and kelvin < 700) or group == "Elastic"


def molten(group: str, kelvin: int) -> bool:
    """From 1089 K on."""
    return group == "AIMD-NVT" and kelvin > 1000


def xtb() -> TBLite:
    return TBLite(method="GFN2-xTB", verbosity=0)


def sampled(
    atoms: Atoms,
    calculator: Any,
    kelvin: float,
    random: Random,
    *,
    count: int,
    every: int,
    step: float = 2.0,
    before: int = 100,
    stress: bool = False,
) -> list[Atoms]:
    """Frames of Langevin dynamics, `every` so many steps (fs), with labels."""
    atoms.calc = calculator
    thermalize_momenta(atoms, kelvin, rng=random)
    dynamics = Langevin(
        atoms,
        step * units.fs,
        temperature_K=kelvin,
        friction=0.02 / units.fs,
        rng=random,
        fixcm=False,
    )
    dynamics.run(before)
    names = ("energy", "forces", "stress") if stress else ("energy", "forces")
    frames = []
    for _ in range(count):
        dynamics.run(every)
        frame = atoms.copy()
        del frame.arrays["momenta"]
        labels = {name: atoms.calc.get_property(name) for name in names}
        frame.calc = SinglePointCalculator(frame, **labels)
        frames.append(frame)
    return frames


if __name__ == "__main__":
    main()
