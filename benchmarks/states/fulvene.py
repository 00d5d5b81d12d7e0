"""Fulvene: eight surface-hopping trajectories of others, divided, and hops beside theirs.

    python benchmarks/states/fulvene.py split fulvene.npz data/fulvene
    bayrace train benchmarks/states/fulvene.yaml -s output=runs/fulvene/mean
    bayrace train benchmarks/states/fulvene.yaml -s output=runs/fulvene/gap \
        -s data.energy_key=energy_soft_gap -s data.forces_key=forces_soft_gap
    bayrace states runs/fulvene/mean/model.bayrace runs/fulvene/gap/model.bayrace \
        --data data/fulvene/test.xyz
    bayrace hop runs/fulvene/mean/model.bayrace runs/fulvene/gap/model.bayrace \
        --start data/fulvene/starts.xyz --trajectories 40 --time 40 -o runs/fulvene/hop
    python benchmarks/states/fulvene.py compare fulvene.npz runs/fulvene/hop \
        runs/fulvene/mean/model.bayrace runs/fulvene/gap/model.bayrace
    python benchmarks/states/fulvene.py methods fulvene.npz

Trajectories 1 to 5 are for training, 6 for validation, 7 and 8 for test. Starts are those of all
eight, five times each. `compare` also asks what Landau–Zener would do along the trajectories of the
file themselves, with the gaps of the file and with those of the potentials; `methods` asks what
every method of hopping would do there, with the energies and couplings of the file alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.io import write
from numpy.typing import NDArray

from bayrace.data.frame import frame_from_atoms
from bayrace.potential.states import States
from bayrace.simulate.hopping import baeck_an
from bayrace.simulate.hopping.electronic import Interval, decohered, propagate
from bayrace.simulate.hopping.landau_zener import probabilities
from bayrace.simulate.hopping.learnt import DALTON, HBAR

Table = Mapping[str, NDArray[np.float64]]
SETS = {"train": (1, 2, 3, 4, 5), "valid": (6,), "test": (7, 8)}
TIMESTEP = 0.5  # fs, which the file's positions and forces obey
REPEATS = 5


def split(table: Table, folder: Path) -> None:
    """Extended XYZ files of the sets, and of starts with momenta."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, trajectories in SETS.items():
        rows = np.flatnonzero(np.isin(table["traj"], trajectories))
        write(folder / f"{name}.xyz", [labelled(table, row) for row in rows])
        print(f"{folder / name}.xyz: {len(rows)} frames")
    starts = [start(table, row) for row in np.flatnonzero(table["step"] == 0)]
    write(folder / "starts.xyz", starts * REPEATS)


def labelled(table: Table, row: int) -> Atoms:
    """A structure with energies, forces and coupling of both states."""
    atoms = Atoms(table["Z"].astype(int), table["R_angstrom"][row])
    atoms.info = {f"energy_{s}": float(table["energy_eV"][row, s]) for s in (0, 1)}
    for state in (0, 1):
        atoms.arrays[f"forces_{state}"] = table["forces_eV_per_A"][row, state]
    atoms.arrays["coupling_01"] = table["nac12_per_A"][row]
    return atoms


def start(table: Table, row: int) -> Atoms:
    """The first frame of a trajectory, with the velocity that leads to its second."""
    atoms = Atoms(table["Z"].astype(int), table["R_angstrom"][row])
    force = table["forces_eV_per_A"][row, int(table["active_state"][row])]
    moved = (table["R_angstrom"][row + 1] - table["R_angstrom"][row]) / TIMESTEP
    slowed = force / (atoms.get_masses()[:, None] * DALTON) * TIMESTEP / 2
    atoms.set_velocities((moved - slowed) / units.fs)
    return atoms


def compare(table: Table, swarm: Path, models: list[Path]) -> None:
    """Shares in the lower state, and Landau–Zener along the trajectories of the file."""
    told = json.loads((swarm / "populations.json").read_text(encoding="utf-8"))
    active = np.array([table["active_state"][table["traj"] == k] for k in np.unique(table["traj"])])
    print("share of trajectories in the lower state")
    print("| time (fs) | reference, 8 | 95 % interval of it (Wilson) | learnt | inside |")
    print("|---|---|---|---|---|")
    for time in (5, 8, 10, 13, 15, 20, 30, 40):
        row = int(np.argmin(np.abs(np.array(told["time_fs"]) - time)))
        theirs = float((active[:, round(time / TIMESTEP)] == 0).mean())
        share, error = told["share"][row][0], told["standard_error"][row][0]
        low, high = wilson(theirs, len(active))
        inside = "yes" if low <= share <= high else "no"
        cells = f"{low:.2f} to {high:.2f} | {share:.2f} ± {error:.2f} | {inside}"
        print(f"| {time} | {theirs:.2f} | {cells} |")
    print(
        "\nleast gap before the first hop (eV), and P(hop) at the minima until two steps after it"
    )
    print("| trajectory | gap, file | gap, learnt | P, file | P, learnt |\n|---|---|---|---|---|")
    states = States.load(models, diabatic=False)
    for number in np.unique(table["traj"]):
        rows = np.flatnonzero(table["traj"] == number)
        hop = int(np.flatnonzero(table["active_state"][rows] == 0)[0])
        rows = rows[: hop + 3]
        frames = [frame_from_atoms(labelled(table, row), keys=None) for row in rows]
        both = (table["energy_eV"][rows], states.predict(frames).energies)
        (gap, chance), (our_gap, our_chance) = (
            (float(np.diff(energies, axis=1).min()), hopping_chance(energies)) for energies in both
        )
        print(f"| {number} | {gap:.3f} | {our_gap:.3f} | {chance:.2f} | {our_chance:.2f} |")


def wilson(share: float, count: int, deviations: float = 1.96) -> tuple[float, float]:
    """Which chances a share of few trajectories does not exclude (Wilson 1927)."""
    extra = deviations**2 / count
    centre = (share + extra / 2) / (1 + extra)
    half = math.sqrt(share * (1 - share) * extra + extra**2 / 4) / (1 + extra)
    return centre - half, centre + half


def hopping_chance(energies: NDArray[np.float64]) -> float:
    """To have hopped from state 1 at one of the minima of the gap; energies are (steps, 2)."""
    stay = 1.0
    for late in range(2, len(energies)):
        three = (energies[late - 2][None], energies[late - 1][None], energies[late][None])
        chance = probabilities(three, np.array([1]), duration=TIMESTEP, hbar=HBAR)
        stay *= 1 - float(chance[0, 0])
    return 1 - stay


def methods(table: Table) -> None:
    """The chance to have left state 1 along each trajectory of the file, by three methods."""
    times = (8, 10, 13, 20)
    print("chance to have hopped at " + ", ".join(map(str, times)) + " fs")
    print("| trajectory | hop, file (fs) | couplings | Baeck-An | Landau-Zener |")
    print("|---|---|---|---|---|")
    found = []
    for number in np.unique(table["traj"]):
        rows = np.flatnonzero(table["traj"] == number)[: round(times[-1] / TIMESTEP) + 2]
        energies = table["energy_eV"][rows]
        gaps = [tuple(energies[max(i - k, 0)][None] for k in range(4)) for i in range(len(rows))]
        by_gaps = [baeck_an.mixing(each, duration=TIMESTEP)[0, 0, 1] for each in gaps]
        curves = (
            switching(table, rows, along_velocity(table, rows)),
            switching(table, rows, np.array(by_gaps)),
            np.array([hopping_chance(energies[: late + 2]) for late in range(len(rows) - 1)]),
        )
        found.append([[curve[round(time / TIMESTEP)] for time in times] for curve in curves])
        hop = np.flatnonzero(table["active_state"][rows] == 0)[0] * TIMESTEP
        cells = " | ".join(", ".join(f"{p:.2f}" for p in each) for each in found[-1])
        print(f"| {number} | {hop:g} | {cells} |")
    mean, all_eight = np.mean(found, axis=0), np.prod(found, axis=0)[:, 2]
    print("| mean | | " + " | ".join(", ".join(f"{p:.2f}" for p in m) for m in mean) + " |")
    print("| all eight at 13 fs | | " + " | ".join(f"{p:.2f}" for p in all_eight) + " |")


def along_velocity(table: Table, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """σ of the file's couplings, whose signs are made to follow the step before, 1/fs."""
    velocities = np.gradient(table["R_angstrom"][rows], TIMESTEP, axis=0)
    couplings = table["nac12_per_A"][rows].copy()
    for place in range(1, len(rows)):
        if np.sum(couplings[place] * couplings[place - 1]) < 0:
            couplings[place] *= -1
    result: NDArray[np.float64] = np.sum(couplings * velocities, axis=(1, 2))
    return result


def switching(
    table: Table, rows: NDArray[np.int64], strength: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The chance to have left state 1 by fewest switches, with energy-based decoherence."""
    energies, active = table["energy_eV"][rows], np.array([1])
    velocities = np.gradient(table["R_angstrom"][rows], TIMESTEP, axis=0)
    masses = Atoms(table["Z"].astype(int)).get_masses() * DALTON
    kinetic = 0.5 * np.einsum("tad,a->t", velocities**2, masses)
    mixing = strength[:, None, None] * np.array([[0.0, 1.0], [-1.0, 0.0]])
    amplitudes, stay, chances = np.array([[0.0, 1.0 + 0j]]), 1.0, [0.0]
    for now in range(len(rows) - 1):
        here, there = slice(now, now + 1), slice(now + 1, now + 2)
        interval = Interval(
            (energies[here], energies[there]), (mixing[here], mixing[there]), TIMESTEP
        )
        amplitudes, chance = propagate(amplitudes, active, interval, substeps=20, hbar=HBAR)
        amplitudes = decohered(
            amplitudes, active, energies[there], kinetic[there],
            duration=TIMESTEP, hbar=HBAR, constant=2.7211,
        )  # fmt: skip
        stay *= 1 - float(chance[0, 0])
        chances.append(1 - stay)
    return np.array(chances)


def main() -> None:
    """Split, compare, or ask about methods."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    stages = parser.add_subparsers(dest="stage", required=True)
    first = stages.add_parser("split")
    first.add_argument("table", type=Path)
    first.add_argument("folder", type=Path)
    second = stages.add_parser("compare")
    second.add_argument("table", type=Path)
    second.add_argument("swarm", type=Path)
    second.add_argument("models", type=Path, nargs="+")
    third = stages.add_parser("methods")
    third.add_argument("table", type=Path)
    options = parser.parse_args()
    with np.load(options.table) as file:
        table = {name: file[name] for name in file.files}
    if options.stage == "split":
        split(table, options.folder)
    elif options.stage == "methods":
        methods(table)
    else:
        compare(table, options.swarm, options.models)


if __name__ == "__main__":
    main()
