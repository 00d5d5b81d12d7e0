"""Label methaniminium, CH₂NH₂⁺, the smallest protonated Schiff base, by SA-2-CASSCF(2,2)/3-21G.

    python scripts/make_methaniminium.py start        # minimum and Hessian of the ground state
    python scripts/make_methaniminium.py dynamics     # hopping trajectories with PySCF itself
    python scripts/make_methaniminium.py label        # both states of frames along some of them
    python scripts/make_methaniminium.py write        # src/bayrace/data/embedded/methaniminium-*
    python scripts/make_methaniminium.py check        # labels of the embedded files anew

Each stage continues where it was interrupted; work is kept in runs/methaniminium. Trajectories
begin on the bright state from the Wigner distribution of the vibrational ground state and hop by
Landau–Zener; after a hop they are hot, so the set has hot frames of the ground state as well.
Trajectories 0 to 19 are the reference of docs/states.md; labels come from others.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import sys
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.io import read, write
from scipy.optimize import minimize

from bayrace.label.oracle import OracleError
from bayrace.label.oracles.casscf import TwoStateCasscf, diabat_gradients
from bayrace.simulate.hopping.initial import finite_difference_hessian, wigner
from bayrace.simulate.hopping.surfaces import Array, Point, Whole
from bayrace.simulate.hopping.swarm import HopSettings, begin, run

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "bayrace" / "data" / "embedded"
SYMBOLS = "CNH4"
PLANE = [  # Å, before relaxation
    (0.0, 0.0, 0.0), (0.0, 0.0, 1.28), (0.94, 0.0, -0.54),
    (-0.94, 0.0, -0.54), (0.87, 0.0, 1.79), (-0.87, 0.0, 1.79),
]  # fmt: skip
METHOD = TwoStateCasscf((6, 7, 1, 1, 1, 1), charge=1, basis="3-21g")
HBAR = units._hbar / units._e * 1e15  # eV fs
MASS = units._amu / units._e * 1e10  # eV fs²/Å² of one atomic mass unit
SEED = 16
REFERENCES = range(20)  # whose populations stand beside those on learnt surfaces
SETS = {"train": range(20, 30), "valid": range(30, 32), "test": range(32, 34)}
DECIMALS = 6


class Casscf:
    """Surfaces of one trajectory; each structure starts from the orbitals of the last."""

    def __init__(self) -> None:
        self._last: tuple[bytes, object] | None = None
        self._orbitals: Array | None = None

    def __call__(self, positions: Array, active: Whole) -> Point:
        if len(positions) != 1:
            raise ValueError(f"{len(positions)} trajectories: give one, orbitals follow it")
        key = positions.tobytes()
        if self._last is None or self._last[0] != key:
            solved = METHOD.solve(positions[0].reshape(-1, 3), self._orbitals)
            self._last, self._orbitals = (key, solved), solved.orbitals
        solved = self._last[1]
        state = int(active[0])
        gradients, _ = solved.derivatives((state,), coupling=False)
        return Point(solved.energies[None], gradients[state].reshape(1, -1))


def start(folder: Path) -> None:
    """Minimum of the ground state, by quasi-Newton steps, and its Hessian."""
    flat = np.array(PLANE).ravel()
    orbitals = METHOD.solve(flat.reshape(-1, 3)).orbitals

    def value(flat: Array) -> tuple[float, Array]:
        solved = METHOD.solve(flat.reshape(-1, 3), orbitals)
        gradients, _ = solved.derivatives((0,), coupling=False)
        return float(solved.energies[0]), gradients[0].ravel()

    found = minimize(value, flat, jac=True, method="BFGS", options={"gtol": 0.01})
    hessian = finite_difference_hessian(lambda x: value(x)[1], found.x)
    np.savez(folder / "start.npz", positions=found.x.reshape(-1, 3), hessian=hessian)
    print(f"minimum after {found.nit} steps, largest force {np.abs(found.jac).max():.1e} eV/Å")


def initial(folder: Path, numbers: range) -> tuple[Array, Array, Array]:
    """Positions, velocities (T, 18) and masses (18,) of these trajectories."""
    kept = np.load(folder / "start.npz")
    masses = np.repeat(Atoms(SYMBOLS).get_masses(), 3) * MASS
    places, speeds = wigner(
        kept["positions"].ravel(), kept["hessian"], masses,
        hbar=HBAR, count=len(numbers), seed=SEED, trajectories=numbers,
    )  # fmt: skip
    return places, speeds, masses


def settings(steps: int) -> HopSettings:
    return HopSettings(
        method="landau-zener", timestep=0.5, steps=steps, hbar=HBAR, direction="velocity", seed=SEED
    )


def dynamics(folder: Path, numbers: range, steps: int) -> None:
    """One file for each trajectory."""
    for number in numbers:
        path = folder / f"trajectory-{number:03d}.npz"
        if path.exists():
            continue
        places, speeds, masses = initial(folder, range(number, number + 1))
        surfaces = Casscf()
        swarm = begin(surfaces, places, speeds, masses, np.array([1]), index=np.array([number]))
        kept = [swarm]
        try:
            kept += list(run(surfaces, swarm, masses, settings(steps)))
        except OracleError as error:
            print(f"trajectory {number}: step {kept[-1].step}: {error}", flush=True)
        drift = max(abs(s.total_energy(masses) - s.start_energy)[0] for s in kept)
        np.savez_compressed(
            path,
            positions=np.array([s.positions[0].reshape(-1, 3) for s in kept]),
            velocities=np.array([s.velocities[0].reshape(-1, 3) for s in kept]),
            energies=np.array([s.point.energies[0] for s in kept]),
            active=np.array([s.active[0] for s in kept]),
        )
        hops = np.flatnonzero(np.diff([s.active[0] for s in kept]))
        print(
            f"trajectory {number}: {len(kept)} steps, hops {hops}, drift {drift:.1e} eV", flush=True
        )


def label(folder: Path, every: int) -> None:
    """Every so many frames of the trajectories of each set, one file a trajectory."""
    for name, numbers in SETS.items():
        for number in numbers:
            source, target = (
                folder / f"trajectory-{number:03d}.npz",
                folder / f"{name}-{number}.xyz",
            )
            if not source.exists() or target.exists():
                continue
            kept, frames, orbitals = np.load(source), [], None
            for step in range(number % every, len(kept["positions"]), every):
                try:
                    frame, orbitals = labelled(kept["positions"][step], orbitals)
                except OracleError as error:
                    print(f"{target.name}, step {step}: {error}", flush=True)
                    continue
                state = int(kept["active"][step])
                frame.info |= {"trajectory": number, "step": step, "active": state}
                frames.append(frame)
            write(target, frames)
            print(f"{target.name}: {len(frames)} frames", flush=True)


def labelled(positions: Array, orbitals: Array | None) -> tuple[Atoms, Array]:
    """A structure with everything about its two states, and its orbitals."""
    positions = np.round(positions - positions.mean(0), DECIMALS)
    solved = METHOD.solve(positions, orbitals)
    gradients, coupling = solved.derivatives()
    diabats, slopes = solved.diabats(), diabat_gradients(METHOD, positions, solved)
    # the sum of both is known analytically; what differences got wrong is shared
    slopes[:2] += (gradients[0] + gradients[1] - slopes[0] - slopes[1]) / 2
    atoms = Atoms(SYMBOLS, positions)
    atoms.info = {f"energy_{s}": round(float(solved.energies[s]), 8) for s in (0, 1)}
    atoms.arrays["coupling_01"] = np.round(coupling, DECIMALS)
    for state in (0, 1):
        atoms.arrays[f"forces_{state}"] = np.round(-gradients[state], DECIMALS)
    for key, value, slope in zip(("pps", "oss", "delta2"), diabats, slopes, strict=True):
        atoms.info[f"energy_{key}"] = round(float(value), 8)
        atoms.arrays[f"forces_{key}"] = np.round(-slope, DECIMALS)
    return atoms, solved.orbitals


def write_sets(folder: Path) -> None:
    for name in SETS:
        frames = [f for path in sorted(folder.glob(f"{name}-*.xyz")) for f in read(path, ":")]
        write(FOLDER / f"methaniminium-{name}.xyz.gz", frames)
        print(f"methaniminium-{name}: {len(frames)} frames")


def check() -> int:
    """Labels of three frames of each embedded file, computed anew."""
    worst = 0.0
    for name in SETS:
        frames = read(FOLDER / f"methaniminium-{name}.xyz.gz", ":")
        for frame in frames[:: max(1, len(frames) // 3)]:
            anew, _ = labelled(frame.positions, None)
            for key in ("forces_0", "forces_1", "forces_pps"):
                worst = max(worst, float(np.abs(anew.arrays[key] - frame.arrays[key]).max()))
    print(f"largest difference of a force: {worst:.1e} eV/Å")
    return 0 if worst < 1e-2 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    stages = ("start", "dynamics", "label", "write", "check")
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "methaniminium")
    parser.add_argument("--first", type=int, default=0, help="first trajectory")
    parser.add_argument("--last", type=int, default=33, help="last trajectory")
    parser.add_argument("--steps", type=int, default=160, help="of 0.5 fs")
    parser.add_argument("--every", type=int, default=4, help="steps between labelled frames")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.stage == "start":
        start(options.folder)
    elif options.stage == "dynamics":
        dynamics(options.folder, range(options.first, options.last + 1), options.steps)
    elif options.stage == "label":
        label(options.folder, options.every)
    elif options.stage == "write":
        write_sets(options.folder)
    else:
        return check()
    return 0


if __name__ == "__main__":
    sys.exit(main())
