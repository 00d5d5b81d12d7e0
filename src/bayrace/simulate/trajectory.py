"""Trajectories with uncertainties, frame by frame: ASE's .traj, or extended XYZ.

What ASE's .traj has no place for, standard deviations and covariances, goes to `atoms.info`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.io.trajectory import Trajectory

from bayrace.data.frame import DataError
from bayrace.deploy.extxyz import write_frame

_STANDARD = ("numbers", "positions", "momenta", "masses", "tags", "initial_charges")


@contextmanager
def open_trajectory(path: str | Path) -> Iterator[Callable[[Atoms], None]]:
    """A function that appends a frame to a new file, safely on disk when it returns."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".traj":
        with _ase_trajectory(path) as append:
            yield append
    elif path.suffix in (".xyz", ".extxyz"):
        with path.open("w", encoding="utf-8") as file:

            def write(atoms: Atoms) -> None:
                write_frame(file, atoms)
                file.flush()

            yield write
    else:
        raise DataError(f"{path}: a trajectory is a .traj or an .xyz file; rename it")


@contextmanager
def _ase_trajectory(path: Path) -> Iterator[Callable[[Atoms], None]]:
    make: Any = Trajectory
    with make(str(path), "w") as file:

        def append(atoms: Atoms) -> None:
            extra = {name: atoms.arrays[name] for name in atoms.arrays if name not in _STANDARD}
            atoms.info |= extra
            file.write(atoms)

        yield append
