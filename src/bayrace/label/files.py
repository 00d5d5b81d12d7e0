"""Labelled structures as files, with what their own files said of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from bayrace.data.write import write_extxyz
from bayrace.label.label import Labelling


def write_labelled(path: Path, structures: Sequence[Atoms], result: Labelling) -> None:
    """Write the structures that have labels; old labels in them are replaced."""
    chosen = []
    for atoms, frame in zip(structures, result.frames, strict=True):
        if frame is None:
            continue
        labels = {"energy": frame.energy, "forces": frame.forces, "stress": frame.stress}
        present = {name: value for name, value in labels.items() if value is not None}
        for name in (*labels, "free_energy"):
            atoms.info.pop(name, None)
            atoms.arrays.pop(name, None)
        atoms.calc = SinglePointCalculator(atoms, **present)  # type: ignore[no-untyped-call]
        chosen.append(atoms)
    write_extxyz(path, chosen)
