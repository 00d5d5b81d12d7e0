"""Files with labels or predictions of several states: energy_0, forces_0, energy_1, …"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ase.io import write

from bayrace.data.frame import DataError, Frame, frame_from_atoms, frame_to_atoms
from bayrace.data.read import iterate_atoms
from bayrace.potential.states import StatePrediction
from bayrace.simulate.hopping.surfaces import Array


def read_states(
    file: str, states: int
) -> tuple[list[Frame], Array | None, Array | None, Array | None]:
    """Structures, and where all of them have labels, energies (F, S), forces and coupling."""
    frames: list[Frame] = []
    infos: list[Any] = []
    for source, index, atoms in iterate_atoms(file):
        frames.append(frame_from_atoms(atoms, keys=None, source=source, index=index))
        infos.append(atoms)
    if not frames:
        raise DataError(f"{file}: holds no structure")
    wanted = range(states)
    if not all(
        f"energy_{s}" in a.info and f"forces_{s}" in a.arrays for a in infos for s in wanted
    ):
        return frames, None, None, None
    energies = np.array([[float(a.info[f"energy_{s}"]) for s in wanted] for a in infos])
    forces = np.array([[a.arrays[f"forces_{s}"] for s in wanted] for a in infos])
    coupled = all("coupling_01" in a.arrays for a in infos)
    coupling = np.array([a.arrays["coupling_01"] for a in infos]) if coupled else None
    return frames, energies, forces, coupling


def write_states(path: Path, frames: list[Frame], told: StatePrediction) -> None:
    """Predictions of every state as extended XYZ."""
    result = []
    for row, frame in enumerate(frames):
        atoms: Any = frame_to_atoms(frame)
        for state in range(told.energies.shape[1]):
            covariance = told.gradients_covariance[row, state]
            spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2).clip(min=0.0))
            deviation = np.sqrt(told.energies_variance[row, state])
            atoms.info[f"energy_{state}"] = float(told.energies[row, state])
            atoms.info[f"energy_{state}_uncertainty"] = float(deviation)
            atoms.arrays[f"forces_{state}"] = -told.gradients[row, state]
            atoms.arrays[f"forces_{state}_uncertainty"] = spread
        if told.coupling is not None:
            atoms.arrays["coupling_01"] = told.coupling[row]
        result.append(atoms)
    write(path, result, format="extxyz")
