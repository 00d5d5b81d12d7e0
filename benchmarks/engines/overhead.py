"""LAMMPS beside ASE and the bare prediction, and beads as one batch.

    python benchmarks/engines/overhead.py --molecule model.bayrace molecule.xyz
    python benchmarks/engines/overhead.py --crystal model.bayrace Si 5.43

In turns, few steps at a time; processor time, medians over 60 rounds. The bare prediction is what
Python gets of `predict_batch` for a graph that is there: energies, forces, their σ, and stress in a
periodic cell.
LAMMPS and ASE also find neighbours and move the atoms; LAMMPS takes σ of atoms, the probability of
the stop rule and, where the potential knows distances, their gaps at every step, as the input of
`bayrace lammps` does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ase.io
from ase import Atoms, units
from ase.build import bulk
from ase.io.lammpsdata import write_lammps_data
from ase.md.verlet import VelocityVerlet

from bayrace.deploy.ase import Calculator, geometry_of
from bayrace.deploy.evaluator import Evaluator
from bayrace.deploy.lammps import couple, open_lammps
from bayrace.potential.potential import Potential
from bayrace.simulate.stop import StopRule
from bayrace.system.process import tune_process

ROUNDS = 60
SYSTEM = """units metal
atom_modify map yes
boundary {ends}
box tilt large
read_data {path}
pair_style zero 2.0 nocoeff
pair_coeff * *
timestep 0.0005
"""


def dynamics(potential: Potential, atoms: Atoms) -> dict[str, float]:
    """Seconds a step by name."""
    steps = max(1, min(10, 600 // len(atoms)))
    rule = StopRule(5.0, 0.05, gap=None if potential.distances is None else 5.0)  # is never broken
    evaluator, stress = Evaluator(potential, rule=rule), bool(atoms.pbc.all())
    elements = sorted(set(atoms.symbols))
    batch = evaluator.neighbours.graph(geometry_of(atoms), dtype=potential.dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "structure.data"
        write_lammps_data(path, atoms, specorder=elements, masses=True)
        lammps = open_lammps(["-log", "none", "-screen", "none"])
        lammps.commands_string(SYSTEM.format(path=path, ends="p p p" if stress else "f f f"))
    driver = couple(lammps, evaluator, elements)
    driver.commands("velocity all create 300 1 mom yes\nfix integrate all nve\nrun 1")
    atoms.calc = Calculator(potential)
    verlet = VelocityVerlet(atoms, 0.5 * units.fs)
    verlet.run(1)
    tasks: dict[str, tuple[Callable[[], object], int]] = {
        "bare": (
            lambda: [potential.predict_batch(batch, stress=stress) for _ in range(steps)],
            steps,
        ),
        "lammps": (lambda: driver.command(f"run {steps} pre no post no"), steps),
        "ase": (lambda: verlet.run(steps), steps),
    }
    return {name: value / count for name, (value, count) in timed(tasks).items()}


def beads(potential: Potential, atoms: Atoms, count: int = 16) -> float:
    """How many times quicker a batch is than as many single evaluations."""
    geometries = []
    for seed in range(count):
        bead = atoms.copy()
        bead.rattle(0.02, seed=seed)
        geometries.append(geometry_of(bead))
    evaluator = Evaluator(potential)
    found = timed(
        {
            "single": (lambda: [evaluator(each) for each in geometries], 1),
            "batch": (lambda: evaluator.many(geometries), 1),
        }
    )
    return found["single"][0] / found["batch"][0]


def timed(
    tasks: dict[str, tuple[Callable[[], object], int]],
) -> dict[str, tuple[float, int]]:
    """The median of the processor time of each, and its count."""
    spent: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(ROUNDS):
        for name, (run, _) in tasks.items():
            start = time.process_time()
            run()
            spent[name].append(time.process_time() - start)
    return {name: (statistics.median(spent[name]), count) for name, (_, count) in tasks.items()}


def show(potential: Potential, atoms: Atoms) -> None:
    found = dynamics(potential, atoms)
    over = ", ".join(
        f"{name} {1000 * each:.2f} ms ({each / found['bare'] - 1:+.0%})"
        for name, each in found.items()
    )
    rates = ", ".join(f"{name} {1 / found[name]:.0f}" for name in ("lammps", "ase"))
    print(f"{len(atoms)} atoms: {over}; steps per second: {rates}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--molecule", nargs=2, metavar=("MODEL", "FILE"))
    parser.add_argument("--crystal", nargs=3, metavar=("MODEL", "ELEMENT", "LATTICE"))
    given = parser.parse_args()
    tune_process()
    if given.molecule:
        model, path = given.molecule
        atoms = ase.io.read(path, index=0)
        atoms.center(vacuum=20.0)
        atoms.pbc = False
        show(Potential.load(model), atoms)
    if given.crystal:
        model, element, lattice = given.crystal
        potential = Potential.load(model)
        small, cubic = (bulk(element, a=float(lattice), cubic=c) for c in (False, True))
        for start, repeats in ((small, 3), (cubic, 3), (cubic, 5)):
            atoms = start.repeat(repeats)
            atoms.rattle(0.02, seed=1)
            show(potential, atoms)
        gain = beads(potential, small.repeat((2, 2, 1)))
        print(f"16 beads of 8 atoms: {gain:.1f} times quicker")


if __name__ == "__main__":
    main()
