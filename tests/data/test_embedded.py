"""The shipped data: complete, consistent with its description, physically sane, and small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.io import read

from bayrace.data.embedded import EMBEDDED, embedded, embedded_frames
from bayrace.data.frame import frame_to_atoms
from bayrace.label.oracles.casscf import TwoStateCasscf
from bayrace.simulate.hopping.labelled import read_states

COUNTS = {
    name: int(text.split()[0]) for name, text in EMBEDDED.items() if text.split()[0].isdigit()
}
ONE_STATE = [name for name in COUNTS if not name.startswith("methaniminium")]


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_holds_as_many_frames_as_described(name: str, count: int) -> None:
    assert len(embedded_frames(name)) == count


def test_files_are_the_described_ones_and_below_a_megabyte() -> None:
    paths = {embedded(name) for name in EMBEDDED}
    assert paths == set(next(iter(paths)).parent.glob("*.gz"))
    assert sum(path.stat().st_size for path in paths) < 1_000_000


@pytest.mark.parametrize("name", ONE_STATE)
def test_every_frame_is_labelled(name: str) -> None:
    for frame in embedded_frames(name):
        assert frame.energy is not None
        assert frame.forces is not None
        assert (frame.stress is not None) == name.startswith("ammonia")
        assert np.abs(frame.forces.sum(axis=0)).max() < 1e-4, "forces of a free system cancel"


@pytest.mark.parametrize("system", ["ethanol", "ammonia"])
def test_hot_frames_are_hotter_and_trajectories_are_not_shared(system: str) -> None:
    def force_rms(name: str) -> float:
        forces = [frame.forces for frame in embedded_frames(name) if frame.forces is not None]
        return float(np.sqrt(np.mean(np.concatenate(forces) ** 2)))

    cold, hot = force_rms(f"{system}-test"), force_rms(f"{system}-hot")
    assert force_rms(f"{system}-train") == pytest.approx(cold, rel=0.1)
    assert hot > 1.3 * cold
    seen: set[bytes] = set()
    for name in (f"{system}-train", f"{system}-valid", f"{system}-test", f"{system}-hot"):
        fresh = {frame.positions.tobytes() for frame in embedded_frames(name)}
        assert not fresh & seen
        seen |= fresh


@pytest.mark.parametrize("name", ONE_STATE)
def test_no_molecule_has_come_apart(name: str) -> None:
    for frame in embedded_frames(name):
        atoms = frame_to_atoms(frame)
        distances = atoms.get_all_distances(mic=bool(atoms.pbc.any()))
        hydrogen = atoms.numbers == 1
        nearest = distances[np.ix_(hydrogen, ~hydrogen)].min(axis=1)
        assert nearest.max() < 1.6
        assert distances[~np.eye(len(atoms), dtype=bool)].min() > 0.7


@pytest.mark.parametrize(
    ("name", "symbols"), [("ethanol-atoms", ["C", "H", "O"]), ("ammonia-atoms", ["H", "N"])]
)
def test_isolated_atoms_bind(name: str, symbols: list[str]) -> None:
    atoms = {frame.numbers[0]: frame.energy for frame in embedded_frames(name)}
    assert [Atoms([number]).symbols[0] for number in atoms] == symbols
    for frame in embedded_frames(name.replace("atoms", "train")):
        assert frame.energy is not None
        free = sum(atoms[number] or np.nan for number in frame.numbers)
        assert -6.0 < (frame.energy - free) / len(frame.numbers) < -2.0, "eV of binding per atom"


@pytest.mark.parametrize("name", ["ethanol-hot", "ammonia-hot"])
def test_labels_are_those_of_tblite_at_the_stored_positions(name: str) -> None:
    tblite = pytest.importorskip("tblite.ase")
    atoms = read(embedded(name), 0)
    assert isinstance(atoms, Atoms)
    again = Atoms(atoms)
    method = "GFN2-xTB" if name.startswith("ethanol") else "GFN1-xTB"
    again.calc = tblite.TBLite(method=method, verbosity=0, accuracy=0.01)
    assert again.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=1e-6)
    assert again.get_forces() == pytest.approx(atoms.get_forces(), abs=2e-6)
    if atoms.pbc.all():
        assert again.get_stress() == pytest.approx(atoms.get_stress(), abs=1e-7)


def test_two_states_of_methaniminium() -> None:
    """Ordered, with forces that cancel, close to each other in places, no trajectory shared."""
    trajectories: list[int] = []
    least = np.inf
    for name in ("train", "valid", "test"):
        path = embedded(f"methaniminium-{name}")
        _, energies, forces, coupling = read_states(str(path), 2)
        assert energies is not None
        assert forces is not None
        assert coupling is not None
        gaps = np.diff(energies, axis=1)[:, 0]
        assert gaps.min() > 0
        least = min(least, gaps.min())
        assert np.abs(forces.sum(2)).max() < 1e-3
        assert np.abs(coupling.sum(1)).max() < 1e-4
        found = {atoms.info["trajectory"] for atoms in read(path, ":")}
        trajectories += found
    assert least < 0.1
    assert len(trajectories) == len(set(trajectories))


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_methaniminium_labels_are_those_of_pyscf() -> None:
    pytest.importorskip("pyscf")
    method = TwoStateCasscf((6, 7, 1, 1, 1, 1), charge=1, basis="6-31g")
    frames = read(embedded("methaniminium-test"), ":")
    frame = min(frames, key=lambda atoms: atoms.info["energy_1"] - atoms.info["energy_0"])
    solved = method.solve(frame.positions)
    labels = [frame.info[f"energy_{state}"] for state in (0, 1)]
    assert solved.energies == pytest.approx(labels, abs=1e-4)
    slopes, _ = solved.derivatives((1,), coupling=False)
    assert -slopes[1] == pytest.approx(frame.arrays["forces_1"], abs=2e-2)


def test_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'ethanol-trian' is no embedded data set.*ethanol-train"):
        embedded("ethanol-trian")
    with pytest.raises(ValueError, match="choose from ethanol-train, "):
        embedded("zzz")


def test_path_exists_and_needs_no_loader() -> None:
    path = embedded("ethanol-test")
    assert isinstance(path, Path)
    assert path.exists()
