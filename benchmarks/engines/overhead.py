"""LAMMPS beside ASE and the bare prediction, and beads as one batch, with one potential.

    python benchmarks/engines/overhead.py model.bayrace --element Si --lattice 5.43

Interleaved; the least processor time of 25 rounds. LAMMPS and ASE also find neighbours and move
the atoms; LAMMPS computes σ of atoms and the probability of the stop rule at every step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ase import Atoms, units
from ase.build import bulk
from ase.io.lammpsdata import write_lammps_data
from ase.md.verlet import VelocityVerlet

from bayrace.deploy.ase import Calculator, geometry_of
from bayrace.deploy.evaluator import Evaluator
from bayrace.deploy.lammps import couple, open_lammps
from bayrace.potential.potential import Potential
from bayrace.simulate.stop import StopRule

ROUNDS = 25
SYSTEM = """units metal
atom_modify map yes
boundary p p p
box tilt large
read_data {path}
pair_style zero 2.0 nocoeff
pair_coeff * *
timestep 0.001
"""


def dynamics(potential: Potential, atoms: Atoms, symbol: str) -> dict[str, float]:
    """Seconds a step by name."""
    steps = max(3, min(30, 2000 // len(atoms)))
    evaluator = Evaluator(potential, rule=StopRule(5.0, 0.05))
    batch = evaluator.neighbours.graph(geometry_of(atoms), dtype=potential.dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "structure.data"
        write_lammps_data(path, atoms, specorder=[symbol], masses=True)
        lammps = open_lammps(["-log", "none", "-screen", "none"])
        lammps.commands_string(SYSTEM.format(path=path))
    driver = couple(lammps, evaluator, [symbol])
    driver.commands("velocity all create 300 1\nfix integrate all nve\nrun 1")
    atoms.calc = Calculator(potential)
    verlet = VelocityVerlet(atoms, units.fs)
    verlet.run(1)
    tasks: dict[str, tuple[Callable[[], object], int]] = {
        "bare": (
            lambda: [potential.predict_batch(batch, stress=True) for _ in range(steps)],
            steps,
        ),
        "lammps": (lambda: driver.command(f"run {steps}"), steps + 1),  # and the start of the run
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
    """The least processor time of each, and its count."""
    least = dict.fromkeys(tasks, float("inf"))
    for _ in range(ROUNDS):
        for name, (run, _) in tasks.items():
            start = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - start)
    return {name: (least[name], count) for name, (_, count) in tasks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--element", default="Si")
    parser.add_argument("--lattice", type=float, default=5.43, help="of the cubic cell, Å")
    given = parser.parse_args()
    potential = Potential.load(given.model)
    small, cubic = (bulk(given.element, a=given.lattice, cubic=c) for c in (False, True))
    for start, repeats in ((small, 3), (cubic, 3), (cubic, 5)):
        atoms = start.repeat(repeats)
        atoms.rattle(0.02, seed=1)
        found = dynamics(potential, atoms, given.element)
        over = ", ".join(
            f"{name} {1000 * each:.2f} ms ({each / found['bare'] - 1:+.0%})"
            for name, each in found.items()
        )
        print(f"{len(atoms)} atoms: {over}", flush=True)
    print(f"16 beads of 8 atoms: {beads(potential, small.repeat((2, 2, 1))):.1f} times quicker")


if __name__ == "__main__":
    main()
