"""Oracles against known labels, finite differences, and every way in which they fail."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from ase.build import bulk, molecule
from ase.calculators.emt import EMT

from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.label.oracle import OracleError, check_label, label_with
from bayrace.label.oracles.ase import AseOracle
from bayrace.label.oracles.command import CommandOracle, matching
from bayrace.label.oracles.pyscf import PyscfOracle
from bayrace.label.oracles.teacher import TeacherOracle
from bayrace.label.oracles.xtb import Gfn1, Gfn2
from bayrace.potential.potential import Potential

PROGRAM = """
import sys
from ase.io import read, write
from ase.calculators.emt import EMT

atoms = read(sys.argv[1])
if "sort" in sys.argv:
    atoms = atoms[atoms.numbers.argsort(kind="stable")]
if "move" in sys.argv:
    atoms.positions[0] += 0.1
atoms.calc = EMT()
atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
write(sys.argv[2], atoms)
"""


@pytest.fixture
def metal() -> Frame:
    atoms = bulk("Cu", cubic=True)
    atoms.symbols[[0, 2]] = "Au"
    atoms.rattle(0.1, seed=1)
    return frame_from_atoms(atoms, keys=None, source="metal.xyz", index=3)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def command(program: Path, *extra: str, **options: object) -> CommandOracle:
    line = " ".join([sys.executable, str(program), "{input}", "{output}", *extra])
    return CommandOracle(line, input="in.cif", output="out.xyz", **options)


def test_a_calculator_by_its_name(metal: Frame) -> None:
    found = AseOracle("ase.calculators.emt:EMT", {"asap_cutoff": True}).label(metal)
    expected = label_with(EMT(asap_cutoff=True), metal)
    assert found.energy == expected.energy
    np.testing.assert_array_equal(found.forces, expected.forces)
    np.testing.assert_array_equal(found.stress, expected.stress)
    np.testing.assert_array_equal(found.positions, metal.positions)
    assert found.origin == "metal.xyz, frame 3"


def test_a_calculator_in_a_file(metal: Frame, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from ase.calculators.emt import EMT\nclass Mine(EMT): pass\n", "utf-8")
    found = AseOracle(f"{file}:Mine", reuse=True).label(metal)
    assert found.energy == label_with(EMT(), metal).energy


def test_molecules_have_no_stress(metal: Frame) -> None:
    lonely = replace(metal, pbc=np.zeros(3, dtype=bool), cell=np.zeros((3, 3)))
    assert AseOracle("ase.calculators.emt:EMT").label(lonely).stress is None


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("EMT", {}, "not an import path"),
        ("no.such.module:EMT", {}, "cannot import no.such.module"),
        ("ase.calculators.emt:ETM", {}, "has no ETM"),
        ("nowhere.py:EMT", {}, "nowhere.py: no such file"),
        ("ase.calculators.emt:parameters", {}, "is a dict"),
        ("ase.calculators.tip3p:TIP3P", {"no_such": 1}, "cannot be made .*no_such"),
        ("tblite.ase:TBLite", {"method": "GFN9", "verbosity": 0}, "metal.xyz, frame 3: .*GFN9"),
    ],
)
def test_wrong_calculators(path: str, arguments: dict, message: str, metal: Frame) -> None:
    with pytest.raises(OracleError, match=message):
        AseOracle(path, arguments).label(metal)


@pytest.mark.parametrize(("name", "oracle"), [("ethanol-test", Gfn2()), ("ammonia-test", Gfn1())])
def test_xtb_repeats_the_embedded_labels(name: str, oracle: Gfn2) -> None:
    frame = embedded_frames(name)[0]
    found = oracle.label(frame)
    assert found.energy == pytest.approx(frame.energy, abs=1e-6)
    np.testing.assert_allclose(found.forces, frame.forces, atol=2e-6)
    if frame.stress is not None:
        np.testing.assert_allclose(found.stress, frame.stress, atol=2e-8)


def test_xtb_of_a_radical() -> None:
    frame = frame_from_atoms(molecule("CH3"), keys=None)
    doublet = Gfn2().label(frame).energy
    assert doublet == Gfn2(multiplicity=2).label(frame).energy


def test_xtb_says_why_it_failed() -> None:
    frame = embedded_frames("ethanol-test")[0]
    with pytest.raises(OracleError, match=r"frame 0: GFN2-xTB failed .*max_iterations"):
        Gfn2(max_iterations=1).label(frame)


@pytest.mark.parametrize("name", ["H2", "CH3"])
def test_dft_forces_are_the_slope_of_the_energy(name: str) -> None:
    pytest.importorskip("pyscf")
    oracle = PyscfOracle("pbe", "sto-3g", grid=5, tolerance=1e-11)
    atoms = molecule(name)
    atoms.positions *= 1.1
    frame = frame_from_atoms(atoms, keys=None)
    energies = []
    for step in (-0.005, 0.005):
        moved = frame.positions.copy()
        moved[1, 2 if name == "H2" else 1] += step
        energies.append(oracle.label(replace(frame, positions=moved)).energy)
    slope = -(energies[1] - energies[0]) / 0.01
    assert oracle.label(frame).forces[1, 2 if name == "H2" else 1] == pytest.approx(slope, abs=2e-3)


def test_hartree_fock_of_hydrogen() -> None:
    """Szabo and Ostlund: -1.1167 Hartree at 1.4 Bohr in the basis STO-3G."""
    pytest.importorskip("pyscf")
    atoms = molecule("H2")
    atoms.set_distance(0, 1, 1.4 * 0.529177210903)
    found = PyscfOracle("hf", "sto-3g").label(frame_from_atoms(atoms, keys=None))
    assert found.energy == pytest.approx(-1.1167 * 27.2113862, abs=2e-3)


def test_dft_fails_with_a_reason(metal: Frame) -> None:
    pytest.importorskip("pyscf")
    frame = frame_from_atoms(molecule("H2O"), keys=None)
    with pytest.raises(OracleError, match="for molecules"):
        PyscfOracle("pbe", "sto-3g").label(metal)
    with pytest.raises(OracleError, match="did not converge in 1 cycles"):
        PyscfOracle("pbe", "sto-3g", max_cycles=1).label(frame)
    with pytest.raises(OracleError, match="check functional, basis"):
        PyscfOracle("pbe", "no-such-basis").label(frame)


def test_a_program(metal: Frame, program: Path) -> None:
    found = command(program).label(metal)
    expected = label_with(EMT(), metal)
    assert found.energy == pytest.approx(expected.energy, abs=1e-5)
    np.testing.assert_allclose(found.forces, expected.forces, atol=1e-5)
    np.testing.assert_allclose(found.stress, expected.stress, atol=1e-6)


def test_a_program_that_sorts_the_atoms(metal: Frame, program: Path) -> None:
    found = command(program, "sort").label(metal)
    np.testing.assert_allclose(found.forces, label_with(EMT(), metal).forces, atol=1e-5)


def test_the_energy_is_that_of_the_forces(metal: Frame, tmp_path: Path) -> None:
    """Metals have an entropy of electrons; forces are the slope of the free energy."""
    result = tmp_path / "result.xyz"
    header = "Properties=species:S:1:pos:R:3:forces:R:3 energy=-1.0 free_energy=-1.5"
    result.write_text(f"1\n{header}\nCu 0 0 0 0 0 0.1\n", encoding="utf-8")
    oracle = CommandOracle(
        "cp result.xyz {output}", input="in.xyz", output="out.xyz", files=(str(result),)
    )
    geometry = {"positions": np.zeros((1, 3)), "cell": np.zeros((3, 3))}
    lonely = replace(metal, numbers=np.array([29]), pbc=np.zeros(3, dtype=bool), **geometry)
    found = oracle.label(lonely)
    assert found.energy == -1.5
    assert found.forces.tolist() == [[0.0, 0.0, 0.1]]


def test_a_program_that_moves_the_atoms(metal: Frame, program: Path) -> None:
    with pytest.raises(OracleError, match="Å from where it was sent"):
        command(program, "move").label(metal)


def test_programs_that_fail(metal: Frame, tmp_path: Path) -> None:
    def run(line: str, **options: object) -> Frame:
        return CommandOracle(line, input="in.xyz", output="out.xyz", **options).label(metal)

    with pytest.raises(OracleError, match=r"exit code 3: no licence"):
        run("sh -c 'echo no licence; exit 3'")
    with pytest.raises(OracleError, match=r"wrote no out\.xyz"):
        run("true")
    with pytest.raises(OracleError, match="has no energy or no forces"):
        run("cp {input} {output}")
    with pytest.raises(OracleError, match=r"cannot read out\.xyz"):
        run("sh -c 'echo rubbish > {output}'")
    with pytest.raises(OracleError, match="/no/such/program: cannot be run"):
        run("/no/such/program")
    with pytest.raises(OracleError, match="no such file to copy"):
        run("true", files=("INCAR",))
    with pytest.raises(OracleError, match="check input_format"):
        run("true", input_format="no-such-format")
    with pytest.raises(OracleError, match="exit code 1"):
        run("false", keep=str(tmp_path / "kept"))
    (kept,) = (tmp_path / "kept").iterdir()
    assert {path.name for path in kept.iterdir()} == {"in.xyz", "bayrace-command.log"}


def test_a_time_out_ends_the_program_and_its_children(metal: Frame, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    line = f"sh -c 'sleep 1000 & echo $! > {note}; wait'"
    oracle = CommandOracle(line, input="in.xyz", output="out.xyz", timeout=0.3)
    with pytest.raises(OracleError, match=r"took more than 0\.3 s"):
        oracle.label(metal)
    pid = note.read_text() if note.exists() else ""
    while pid and _runs(int(pid)):  # pytest's own limit names what hangs
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether a process is at work; what has ended but was not asked after is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_other_atoms_are_refused(metal: Frame) -> None:
    with pytest.raises(OracleError, match="other atoms came back"):
        matching(metal, replace(metal, numbers=metal.numbers + 1))


def test_atoms_in_another_image_are_the_same(metal: Frame) -> None:
    order = np.array([2, 0, 3, 1])
    positions = metal.positions[order] + metal.cell[0]
    shuffled = replace(metal, numbers=metal.numbers[order], positions=positions)
    np.testing.assert_array_equal(order[matching(metal, shuffled)], np.arange(4))


def test_a_teacher(make_potential: Callable[..., Potential], tmp_path: Path) -> None:
    path = tmp_path / "teacher.bayrace"
    potential = make_potential(seeds=(0, 1))
    potential.save(path)
    frame = embedded_frames("ethanol-test")[0]
    found = TeacherOracle(str(path)).label(frame)
    prediction = potential.predict(frame)
    assert found.energy == float(prediction.energy.mean[0])
    np.testing.assert_array_equal(found.forces, prediction.forces.mean.numpy())
    assert "teacher.bayrace, sha256 " in TeacherOracle(str(path)).method
    with pytest.raises(OracleError, match="no such file"):
        TeacherOracle("nowhere.bayrace").label(frame)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"energy": None}, "no energy"),
        ({"forces": np.zeros((2, 3))}, "shape"),
        ({"energy": float("nan")}, "energy is not finite"),
        ({"stress": np.full(6, np.inf)}, "stress is not finite"),
        ({"forces": np.array([[0, 0, 0], [0, 30, 40], [0, 0, 0], [0, 0, 0.0]])}, "atom 1 is 50"),
    ],
)
def test_nonsense_is_refused(change: dict, message: str, metal: Frame) -> None:
    good = label_with(EMT(), metal)
    check_label(good, max_force=20.0)
    with pytest.raises(OracleError, match=message):
        check_label(replace(good, **change), max_force=20.0)
