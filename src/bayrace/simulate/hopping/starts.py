"""Starts of a swarm from structures: vibrations about one, or several with their momenta."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from ase import units

from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.data.read import iterate_atoms
from bayrace.potential.states import States
from bayrace.simulate.hopping.initial import finite_difference_hessian, wigner
from bayrace.simulate.hopping.learnt import HBAR, LearntSurfaces
from bayrace.simulate.hopping.surfaces import Array

BOLTZMANN = 8.617333262e-5  # eV/K


def read_starts(file: str) -> tuple[list[Frame], list[Array | None]]:
    """Structures and their velocities (3n,) Å/fs, where the file has momenta."""
    frames: list[Frame] = []
    velocities: list[Array | None] = []
    for source, index, atoms in iterate_atoms(file):
        found: Any = atoms
        frames.append(frame_from_atoms(atoms, keys=None, source=source, index=index))
        moving = found.has("momenta") and bool(np.any(found.get_momenta()))
        speed = found.get_velocities() * units.fs if moving else None
        velocities.append(None if speed is None else speed.ravel())
    if not frames:
        raise ValueError(f"{file}: holds no structure; give a minimum, or starts with momenta")
    same = all(np.array_equal(frame.numbers, frames[0].numbers) for frame in frames)
    if not same or any(frame.pbc.any() for frame in frames):
        raise ValueError(f"{file}: surface hopping takes one molecule; give its structures only")
    return frames, velocities


def starts(
    states: States, file: str, *, trajectories: int, temperature: float, seed: int
) -> tuple[Frame, Array, Array]:
    """The molecule, positions and velocities (T, 3n), Å and Å/fs.

    One structure is relaxed on the lowest state, and trajectories are drawn from the Wigner
    distribution of its vibrations at this temperature (K; 0: the ground state). Several are starts
    themselves, with the momenta of the file; there must be as many as trajectories, or more.
    """
    frames, velocities = read_starts(file)
    if len(frames) > 1:
        if len(frames) < trajectories or any(v is None for v in velocities[:trajectories]):
            raise ValueError(
                f"{file}: {len(frames)} structures for {trajectories} trajectories; give one "
                "structure to vibrate about, or as many with momenta"
            )
        chosen = np.array([frame.positions.ravel() for frame in frames[:trajectories]])
        return frames[0], chosen, np.array([v for v in velocities[:trajectories] if v is not None])
    frame = frames[0]
    surfaces = LearntSurfaces(states, frame)

    def gradient(flat: Array) -> Array:
        slope: Array = surfaces(flat[None], np.zeros(1, dtype=np.int64)).gradient[0]
        return slope

    minimum = relaxed(states, frame)
    hessian = finite_difference_hessian(gradient, minimum)
    places, speeds = wigner(
        minimum,
        hessian,
        surfaces.masses,
        hbar=HBAR,
        count=trajectories,
        seed=seed,
        thermal=BOLTZMANN * temperature,
    )
    return frame, places, speeds


def relaxed(states: States, frame: Frame) -> Array:
    """Positions (3n,) of the nearest minimum of the lowest state."""
    from scipy.optimize import minimize

    shape = frame.positions.shape

    def value(flat: Array) -> tuple[float, Array]:
        told = states.predict([replace(frame, positions=flat.reshape(shape))], uncertainty=False)
        return float(told.energies[0, 0]), told.gradients[0, 0].ravel()

    start = frame.positions.ravel()
    found = minimize(value, start, jac=True, method="BFGS", options={"gtol": 0.02, "maxiter": 200})
    if np.abs(found.x - start).max() > 0.5:
        raise ValueError(
            f"{frame.origin}: an atom moved {np.abs(found.x - start).max():.2g} Å on the way to a "
            "minimum of the lowest state; give a structure nearer to one"
        )
    result: Array = found.x
    return result
