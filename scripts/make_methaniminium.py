"""Label methaniminium, CH₂NH₂⁺, the smallest protonated Schiff base, by SA-2-CASSCF(2,2)/6-31G.

    python scripts/make_methaniminium.py start        # minimum and Hessian of the ground state
    python scripts/make_methaniminium.py dynamics     # trajectories that the labels come from
    python scripts/make_methaniminium.py label        # both states of frames along them
    python scripts/make_methaniminium.py diabats      # and their diabatic form
    python scripts/make_methaniminium.py write        # src/bayrace/data/embedded/methaniminium-*
    python scripts/make_methaniminium.py check        # labels of the embedded files anew
    python scripts/make_methaniminium.py reference    # 20 trajectories with PySCF itself
    python scripts/make_methaniminium.py starts       # 100 starts for bayrace hop, theirs first

Each stage continues where it was interrupted; work is kept in runs/methaniminium. Trajectories
begin from the Wigner distribution of the vibrational ground state with the NH₂ group turned by 60°,
on the upper state, and hop by Landau–Zener; some begin on the lower state and are hot without
hopping. Flat structures have two solutions of the CASSCF equations, π → π* and σ → π*, so that
neither is a smooth function of the positions there; from 60° on there was only the first.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.io import read, write
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation

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
METHOD = TwoStateCasscf((6, 7, 1, 1, 1, 1), charge=1, basis="6-31g")
HBAR = units._hbar / units._e * 1e15  # eV fs
MASS = units._amu / units._e * 1e10  # eV fs²/Å² of one atomic mass unit
SEED = 16
TWIST = 60.0  # degrees
REFERENCES = range(20)  # whose populations stand beside those on learnt surfaces
SETS = {"train": [*range(20, 30), 50, 51, 52], "valid": [30, 31], "test": [32, 33, 34]}
LOWER = range(50, 53)  # begin on the lower state
CLOSE = 1.5  # eV
DECIMALS = 6
Trajectory = Mapping[str, Array]  # as written by `dynamics`


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
    for place, speed in zip(places.reshape(-1, 6, 3), speeds.reshape(-1, 6, 3), strict=True):
        axis = place[1] - place[0]
        turn = Rotation.from_rotvec(TWIST * axis / np.linalg.norm(axis), degrees=True)
        place[4:] = place[1] + turn.apply(place[4:] - place[1])
        speed[4:] = turn.apply(speed[4:])
    return places, speeds, masses


def settings(timestep: float, time: float) -> HopSettings:
    return HopSettings(
        method="landau-zener", timestep=timestep, steps=round(time / timestep), hbar=HBAR,
        direction="velocity", seed=SEED,
    )  # fmt: skip


def dynamics(folder: Path, numbers: Iterable[int], how: HopSettings) -> None:
    """One file for each trajectory; one whose active orbitals change ends there."""
    for number in numbers:
        path = folder / f"trajectory-{number:03d}.npz"
        if path.exists():
            continue
        places, speeds, masses = initial(folder, range(number, number + 1))
        surfaces, active = Casscf(), np.array([0 if number in LOWER else 1])
        swarm = begin(surfaces, places, speeds, masses, active, index=np.array([number]))
        kept = [swarm]
        try:
            for latest in run(surfaces, swarm, masses, how):
                kept.append(latest)  # noqa: PERF402 - what came before an error is kept
        except OracleError as error:
            print(f"trajectory {number}: step {kept[-1].step}: {error}", flush=True)
        drift = max(abs(s.total_energy(masses) - s.start_energy)[0] for s in kept)
        states = np.array([s.active[0] for s in kept])
        np.savez_compressed(
            path,
            times=np.array([s.step * how.timestep for s in kept]),
            positions=np.array([s.positions[0].reshape(-1, 3) for s in kept]),
            energies=np.array([s.point.energies[0] for s in kept]),
            active=states,
            drift=drift,
        )
        hops = 1 + np.flatnonzero(np.diff(states))
        print(
            f"trajectory {number}: {len(kept)} steps, hops {hops}, drift {drift:.1e} eV", flush=True
        )


def label(folder: Path, every: int) -> None:
    """Frames of the trajectories of each set, one file a trajectory.

    Every so many steps, and every step where the states are close and hops are decided.
    """
    for name, numbers in SETS.items():
        for number in numbers:
            kept = np.load(folder / f"trajectory-{number:03d}.npz")
            target = folder / f"{name}-{number}.xyz"
            frames = read(target, ":") if target.exists() else []
            close = np.diff(kept["energies"], axis=1)[:, 0] < CLOSE
            wanted = close | (np.arange(len(close)) % every == number % every)
            wanted[[frame.info["step"] for frame in frames]] = False
            if wanted.any():
                frames += label_steps(kept, np.flatnonzero(wanted), number, every)
                write(target, sorted(frames, key=lambda frame: frame.info["step"]))
            print(f"{target.name}: {len(frames)} frames", flush=True)


def label_steps(kept: Trajectory, steps: Array, number: int, every: int) -> list[Atoms]:
    """These steps of a trajectory, from the orbitals of the one before where it is near."""
    frames: list[Atoms] = []
    orbitals, before = None, -every
    for step in steps:
        try:
            near = orbitals if step - before <= every else None
            frame, orbitals = labelled(kept["positions"][step], near)
        except OracleError as error:
            print(f"trajectory {number}, step {step}: {error}", flush=True)
            continue
        before = step
        frame.info |= {"trajectory": number, "step": int(step), "active": int(kept["active"][step])}
        frames.append(frame)
    return frames


def labelled(positions: Array, orbitals: Array | None) -> tuple[Atoms, Array]:
    """A structure with energies, forces and coupling of its two states, and its orbitals."""
    positions = np.round(positions - positions.mean(0), DECIMALS)
    solved = METHOD.solve(positions, orbitals)
    gradients, coupling = solved.derivatives()
    atoms = Atoms(SYMBOLS, positions)
    atoms.info = {f"energy_{s}": round(float(solved.energies[s]), 8) for s in (0, 1)}
    atoms.arrays["coupling_01"] = np.round(coupling, DECIMALS)
    for state in (0, 1):
        atoms.arrays[f"forces_{state}"] = np.round(-gradients[state], DECIMALS)
    return atoms, solved.orbitals


def diabats(folder: Path) -> None:
    """Add E_PPS, E_OSS, Δ² and their slopes to every labelled frame."""
    for path in sorted(folder.glob("*-*.xyz")):
        frames = read(path, ":")
        if all("energy_pps" in frame.info for frame in frames):
            continue
        orbitals, kept = None, []
        for frame in frames:
            try:
                solved = METHOD.solve(frame.positions, orbitals)
                slopes = diabat_gradients(METHOD, frame.positions, solved)
            except OracleError as error:
                print(f"{path.name}, step {frame.info['step']}: {error}", flush=True)
                continue
            # the sum of both is known analytically; what differences got wrong is shared
            known = -frame.arrays["forces_0"] - frame.arrays["forces_1"]
            slopes[:2] += (known - slopes[0] - slopes[1]) / 2
            parts = zip(("pps", "oss", "delta2"), solved.diabats(), slopes, strict=True)
            for key, value, slope in parts:
                frame.info[f"energy_{key}"] = round(float(value), 8)
                frame.arrays[f"forces_{key}"] = np.round(-slope, DECIMALS)
            kept.append(frame)
            orbitals = solved.orbitals
        write(path, kept)
        print(f"{path.name}: {len(kept)} of {len(frames)} frames", flush=True)


def starts(folder: Path, count: int) -> None:
    """A file for bayrace hop --start."""
    places, speeds, _ = initial(folder, range(count))
    frames = []
    for place, speed in zip(places, speeds, strict=True):
        atoms = Atoms(SYMBOLS, place.reshape(-1, 3))
        atoms.set_velocities(speed.reshape(-1, 3) / units.fs)
        frames.append(atoms)
    write(folder / "starts.xyz", frames)
    print(f"{folder / 'starts.xyz'}: {count} starts")


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
            for key in ("forces_0", "forces_1"):
                worst = max(worst, float(np.abs(anew.arrays[key] - frame.arrays[key]).max()))
    print(f"largest difference of a force: {worst:.1e} eV/Å")
    return 0 if worst < 1e-2 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    stages = ("start", "dynamics", "label", "diabats", "write", "check", "reference", "starts")
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "methaniminium")
    parser.add_argument("--every", type=int, default=2, help="steps between labelled frames")
    options = parser.parse_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.stage == "start":
        start(folder)
    elif options.stage == "dynamics":  # energy need not be conserved where frames are sampled
        dynamics(folder, [n for name in SETS.values() for n in name], settings(0.5, 30.0))
    elif options.stage == "reference":
        dynamics(folder, REFERENCES, settings(0.25, 20.0))
    elif options.stage == "label":
        label(folder, options.every)
    elif options.stage == "diabats":
        diabats(folder)
    elif options.stage == "write":
        write_sets(folder)
    elif options.stage == "starts":
        starts(folder, count=100)
    else:
        return check()
    return 0


if __name__ == "__main__":
    sys.exit(main())
