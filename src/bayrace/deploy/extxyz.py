"""Predictions as extended XYZ: every structure of some files, with what the potential says of it.

    energy, free_energy     eV                  *_uncertainty, *_aleatoric, *_epistemic: standard
    forces                  eV/Å, 3 columns     deviations in the unit and shape of the quantity
    stress                  eV/Å³               (fully periodic structures only)
    forces_covariance       (eV/Å)², 9 columns: the total 3×3 covariance of each atom's force

Of another property than the energy: its name, *_unit, *_uncertainty, *_aleatoric, *_epistemic.
Whatever else the input holds is kept. Results of another calculator in the input, which these names
would hide, are kept as REF_energy, REF_forces and REF_stress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.extxyz import output_column_format

from bayrace.core.files import whole_file
from bayrace.core.prediction import Prediction
from bayrace.core.target import Target
from bayrace.data.check import check_frame
from bayrace.data.read import Frame, frame_from_atoms, iterate_atoms
from bayrace.deploy.spreads import spreads
from bayrace.potential.cluster import OnCluster
from bayrace.potential.potential import Potential

_LABELS = ("energy", "forces", "stress")


def predict_files(
    potential: Potential | OnCluster,
    paths: str | Path | Sequence[str | Path],
    target: str | Path,
    *,
    edge_budget: int = 20_000,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Predict every structure of `paths`, a batch at a time, and write them to `target`.

    Returns the number of structures. The file appears under its name only when it is complete.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with whole_file(target) as part, part.open("w", encoding="utf-8") as file:
        for atoms in predict_atoms(potential, paths, edge_budget=edge_budget, progress=progress):
            write_frame(file, atoms)
            count += 1
    return count


def predict_atoms(
    potential: Potential | OnCluster,
    paths: str | Path | Sequence[str | Path],
    *,
    edge_budget: int = 20_000,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Atoms]:
    """The structures of files one at a time, carrying predictions as ASE results and arrays."""
    waiting: deque[Atoms] = deque()

    def frames() -> Iterator[Frame]:
        for source, index, atoms in iterate_atoms(paths):
            frame = frame_from_atoms(atoms, keys=None, source=source, index=index)
            check_frame(frame)
            waiting.append(atoms)
            yield frame

    for group, prediction in potential.predict_frames(
        frames(), stress=True, edge_budget=edge_budget, progress=progress
    ):
        ends = np.cumsum([len(frame.numbers) for frame in group])
        for place, end in enumerate(ends):
            atoms = waiting.popleft()
            if potential.target.is_energy:
                yield _annotate(atoms, prediction, place, slice(end - len(atoms), end))
            else:
                yield _with_property(atoms, prediction, place, potential.target)


def _annotate(atoms: Atoms, prediction: Prediction, place: int, rows: slice) -> Atoms:
    """The structure `place` of a prediction, whose atoms are `rows`."""
    results = dict(getattr(atoms.calc, "results", {}))
    for name in _LABELS:  # keep what would be hidden
        kept = atoms.arrays if name == "forces" else atoms.info
        if name in results:
            kept.setdefault(f"REF_{name}", results[name])
    values: dict[str, Any] = {"energy": float(prediction.energy.mean[place])}
    values["free_energy"] = values["energy"]
    values["forces"] = prediction.forces.mean[rows].numpy(force=True)
    atoms.info |= spreads("energy", prediction.energy, place)
    atoms.arrays |= spreads("forces", prediction.forces, rows)
    if prediction.atomic_epistemic is not None:
        local = prediction.atomic_epistemic[rows].sqrt()
        atoms.arrays["energies_epistemic"] = local.numpy(force=True)
    covariance = prediction.forces.total[rows].numpy(force=True)
    atoms.arrays["forces_covariance"] = covariance.reshape(-1, 9)
    if prediction.stress is not None and atoms.pbc.all():
        values["stress"] = prediction.stress.mean[place].numpy(force=True)
        atoms.info |= spreads("stress", prediction.stress, place)
    atoms.calc = SinglePointCalculator(atoms, **values)  # type: ignore[no-untyped-call]
    return atoms


def _with_property(atoms: Atoms, prediction: Prediction, place: int, target: Target) -> Atoms:
    """The structure with a property and its σ; a label in their place is kept as REF_…"""
    name = target.name
    for key, value in dict(getattr(atoms.calc, "results", {})).items():  # ASE moved labels there
        kept = atoms.arrays if np.shape(value)[:1] == (len(atoms),) else atoms.info
        kept.setdefault(f"REF_{key}", value)
    atoms.calc = None
    if name in atoms.info:
        atoms.info.setdefault(f"REF_{name}", atoms.info[name])
    atoms.info |= {name: float(prediction.energy.mean[place]), f"{name}_unit": target.unit}
    atoms.info |= spreads(name, prediction.energy, place)
    return atoms


def write_frame(file: TextIO, atoms: Any) -> None:
    """Append atoms with their results; ASE's writer keeps too few decimals for a covariance."""
    plain = atoms.copy()
    results = dict(getattr(atoms.calc, "results", {}))
    if "forces" in results:
        plain.arrays["forces"] = results.pop("forces")
    if "stress" in results:
        xx, yy, zz, yz, xz, xy = results["stress"]
        results["stress"] = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    plain.info |= results
    plain.arrays["symbols"] = np.array(atoms.get_chemical_symbols())
    hidden = ("symbols", "positions", "numbers")
    columns = ["symbols", "positions", *(name for name in plain.arrays if name not in hidden)]
    arrays = {name: plain.arrays[name] for name in columns}
    comment, widths, _, line = output_column_format(  # type: ignore[no-untyped-call]
        plain, columns, arrays, True
    )
    line = line.replace("%16.8f", "%17.10g")
    flat = [
        arrays[name].reshape(len(plain), width) for name, width in zip(columns, widths, strict=True)
    ]
    file.write(f"{len(plain)}\n{comment}\n")
    for row in range(len(plain)):
        file.write(line % tuple(value for block in flat for value in block[row]))
