"""What the tests of simulation codes share: structures that try them, and what ASE says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from ase import Atoms
from ase.build import bulk, molecule

from bayrace.data.frame import frame_from_atoms
from bayrace.deploy.ase import Calculator
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings, simulate
from bayrace.simulate.stop import StopRule

ELEMENTS = (1, 6, 8, 14)


def structures() -> dict[str, Atoms]:
    """A molecule, a triclinic cell, and a cell that is shorter than the cutoff of 4 Å."""
    random = np.random.default_rng(0)
    small = bulk("Si", a=5.4)  # its shortest lattice vector is 3.8 Å
    small.rattle(0.05, seed=1)
    triclinic = bulk("Si", a=5.4) * (2, 2, 1)
    strain = np.eye(3) + random.normal(0, 0.04, (3, 3))
    triclinic.set_cell(triclinic.cell.array @ strain, scale_atoms=True)
    triclinic.rattle(0.1, seed=2)
    triclinic.symbols[[1, 4]] = "O"
    return {"molecule": molecule("CH3CH2OH"), "triclinic": triclinic, "small": small}


def by_ase(potential: Potential, atoms: Atoms) -> dict[str, Any]:
    """Everything the calculator says."""
    copy = atoms.copy()
    copy.calc = Calculator(potential)
    copy.get_potential_energy()
    return dict(copy.calc.results)


def late_rule(
    potential: Potential, start: Atoms, settings: DynamicsSettings
) -> tuple[Atoms, StopRule]:
    """The first moment of our run, and a rule that is not broken in its first ten steps."""
    looks = simulate(potential, frame_from_atoms(start, keys=None), settings)
    first = next(looks)
    atoms = first.atoms.copy()
    trial = StopRule(3 * first.forces_std, 0.5)
    covariances = [look.results["forces_covariance"] for _, look in zip(range(10), looks)]  # noqa: B905
    risks = [trial.risk(each).probability for each in covariances]
    return atoms, StopRule(trial.max_force_error, max(risks))
