"""Structures relaxed and written with energy, forces, stress and σ, as extended XYZ holds them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS

from bayrace.data.check import check_frame
from bayrace.data.frame import frame_from_atoms
from bayrace.deploy import properties
from bayrace.deploy.ase import Calculator
from bayrace.deploy.extxyz import write_frame
from bayrace.potential.potential import Potential


@dataclass(frozen=True)
class Relaxed:
    """What became of one structure."""

    formula: str
    energy: float  # eV
    std: float  # eV, total
    steps: int
    max_force: float  # eV/Å, what is left, of atoms and of the cell where it relaxed


def relax_all(
    potential: Potential,
    structures: Iterable[Atoms],
    target: Path,
    *,
    max_force: float,
    steps: int,
    cell: bool,
) -> list[Relaxed]:
    """Relax structures one after the other and write them to `target`, which appears when done."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    found = []
    quick, full = Calculator(potential, uncertainty=False), Calculator(potential)
    try:
        with part.open("w", encoding="utf-8") as file:
            for number, start in enumerate(structures):
                check_frame(frame_from_atoms(start, keys=None, index=number))
                atoms: Any = start.copy()  # type: ignore[no-untyped-call]
                atoms.calc = quick
                if cell and not atoms.pbc.all():
                    raise ValueError(
                        f"structure {number}: pbc={atoms.pbc.tolist()}, so there is no cell to "
                        "relax; leave --cell out"
                    )
                moving: Any = FrechetCellFilter(atoms) if cell else atoms  # type: ignore[no-untyped-call]
                make: Any = BFGS
                with make(moving, logfile=None) as optimiser:
                    optimiser.run(fmax=max_force, steps=steps)
                left = float(np.linalg.norm(moving.get_forces(), axis=1).max())
                write_frame(file, _finished(atoms, full))
                results = full.results
                found.append(
                    Relaxed(
                        atoms.get_chemical_formula(),
                        results["energy"],
                        results["energy_uncertainty"],
                        optimiser.nsteps,
                        left,
                    )
                )
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return found


def write_path(found: properties.Path, target: Path) -> None:
    """The images of a path with their energies, relative to the first, and σ of these."""
    with target.open("w", encoding="utf-8") as file:
        for image, energy, std in zip(found.images, found.energies, found.stds, strict=True):
            plain: Any = image.copy()  # type: ignore[no-untyped-call]
            plain.info |= {"relative_energy": float(energy), "relative_energy_std": float(std)}
            keep = {"energy": image.get_potential_energy(), "forces": image.get_forces()}  # type: ignore[no-untyped-call]
            plain.calc = SinglePointCalculator(plain, **keep)  # type: ignore[no-untyped-call]
            write_frame(file, plain)


def _finished(atoms: Any, calculator: Calculator) -> Any:
    """A copy with results and uncertainties where extended XYZ keeps them."""
    calculator.get_property("energy", atoms)
    plain = atoms.copy()
    results = calculator.results
    plain.info["energy_uncertainty"] = results["energy_uncertainty"]
    plain.arrays["forces_uncertainty"] = results["forces_uncertainty"]
    known = {name: results[name] for name in ("energy", "forces", "stress") if name in results}
    plain.calc = SinglePointCalculator(plain, **known)  # type: ignore[no-untyped-call]
    return plain
