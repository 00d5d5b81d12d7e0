"""5. SevenNet-0 with σ for rattled salt: weights from its wheel, nothing is trained.

pip install 'bayrace[sevennet]'
python examples/sevennet.py

The labels here are those of CHGNet, if it is installed, or of a toy: use your own DFT.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ase.io
from ase.build import bulk
from ase.calculators.lj import LennardJones
from ase.calculators.singlepoint import SinglePointCalculator

import bayrace


def main(folder: Path, *, weights: str = "7net-0", frames: int = 40) -> bayrace.Potential:
    folder.mkdir(parents=True, exist_ok=True)
    calculator = _labels()
    structures = []
    for seed in range(frames):
        atoms = bulk("NaCl", "rocksalt", 5.64, cubic=True)
        atoms.rattle(0.02 + 0.1 * (seed % 5) / 5, seed=seed)
        atoms.calc = calculator
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        structures.append(atoms)
    ase.io.write(folder / "salt.xyz", structures)
    potential = bayrace.adopt(weights, folder / "salt.xyz")
    potential.save(folder / "salt.bayrace")
    for rattle in (0.07, 0.15, 0.3):  # the middle of the data, and outside of them
        atoms = bulk("NaCl", "rocksalt", 5.64, cubic=True)
        atoms.rattle(rattle, seed=99)
        energy = potential.predict(atoms).energy
        atoms.calc = calculator
        error = abs(float(energy.mean[0]) - float(atoms.get_potential_energy()))
        print(f"rattled by {rattle} Å: σ_E = {float(energy.std[0]):.3f} eV, error {error:.3f} eV")
    return potential


def _labels() -> object:
    try:
        from chgnet.model.dynamics import CHGNetCalculator
    except ImportError:
        return LennardJones(sigma=2.5, epsilon=0.1, rc=5.0)
    return CHGNetCalculator(use_device="cpu")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
