"""A real i-PI that asks our driver, against the ASE calculator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from typer.testing import CliRunner

from bayrace.cli.main import app
from bayrace.data.frame import frame_from_atoms
from bayrace.deploy.evaluator import Evaluator
from bayrace.deploy.ipi import IpiEvaluator, connect, serve
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings, simulate
from bayrace.simulate.stop import StopRule

from .engines import ELEMENTS, by_ase, late_rule, structures

pytest.importorskip("ipi", reason="needs i-PI: pip install 'bayrace[engines]'")

INPUT = """<simulation verbosity='medium'>
  <output prefix='out'>
    <properties stride='1' filename='props'>
      [ step, potential{{electronvolt}}, conserved{{electronvolt}}, virial_md{{gigapascal}} ]
    </properties>
    <trajectory stride='1' filename='frc' format='xyz'> forces{{ev/ang}} </trajectory>
    <trajectory stride='1' filename='extras' extra_type='{extra}'> extras </trajectory>
  </output>
  <total_steps> {steps} </total_steps>
  <ffsocket mode='unix' name='driver' pbc='False'>
    <address> {address} </address> <latency> 1e-4 </latency>
    <batch_size> {batch} </batch_size> <consolidate_messages> True </consolidate_messages>
  </ffsocket>
  <system>
    <initialize nbeads='{beads}'>
      <file mode='ase'> start.xyz </file>
      {velocities}
    </initialize>
    <forces> <force forcefield='driver'/> </forces>
    <ensemble> <temperature units='kelvin'> 300 </temperature> </ensemble>
    <motion mode='dynamics'>
      <dynamics mode='nve'> <timestep units='femtosecond'> {timestep} </timestep> </dynamics>
    </motion>
  </system>
</simulation>
"""


@pytest.fixture(scope="module")
def random_potential(make_potential: Callable[..., Potential]) -> Potential:
    return make_potential(seeds=(0, 1, 2), elements=ELEMENTS)


Ipi = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start_ipi() -> Iterator[Ipi]:
    """Starts an i-PI that does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    yield partial(waiting_ipi, started)
    for each in started:
        each.kill()
        with each:  # which waits for it and closes its pipe
            pass


def waiting_ipi(
    started: list[subprocess.Popen[str]], folder: Path, atoms: Atoms, **values: object
) -> tuple[subprocess.Popen[str], str]:
    """An i-PI that waits for a driver, and its address."""
    address = f"bayrace-{uuid.uuid4().hex[:12]}"
    velocities = values.pop(
        "velocities", "<velocities mode='thermal' units='kelvin'> 300 </velocities>"
    )
    boxed = atoms.copy()
    if not boxed.pbc.all():
        boxed.cell, boxed.pbc = np.eye(3) * 50, True
    ase.io.write(folder / "start.xyz", boxed)
    settings = {
        "steps": 1,
        "batch": 1,
        "beads": 1,
        "timestep": 0.5,
        "extra": "energy_uncertainty",
    } | values
    text = INPUT.format(address=address, velocities=velocities, **settings)
    (folder / "input.xml").write_text(text)
    running = subprocess.Popen(
        [sys.executable, str(Path(sys.executable).parent / "i-pi"), "input.xml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},  # else its first lines stay in the pipe
    )
    started.append(running)
    assert running.stdout is not None
    said = []
    for line in running.stdout:
        said.append(line)
        if "Created unix socket" in line:
            return running, address
    raise AssertionError("".join(said))


def standard(atoms: Atoms) -> Atoms:
    """With its first vector along x, as i-PI wants it."""
    turned = atoms.copy()
    if turned.pbc.all():
        cell, rotation = turned.cell.standard_form()
        turned.set_positions(turned.positions @ rotation.T)
        turned.set_cell(cell)
    return turned


@pytest.mark.parametrize("name", structures())
def test_energy_forces_virial_and_extras(
    random_potential: Potential, start_ipi: Ipi, tmp_path: Path, name: str
) -> None:
    atoms = standard(structures()[name])
    running, address = start_ipi(tmp_path, atoms, extra="committee_pot")
    answers = IpiEvaluator(Evaluator(random_potential), atoms.numbers, atoms.pbc, committee=True)
    with connect(unix=address, host="", port=0, patience=300) as connection:
        serve(connection, answers)
    said, _ = running.communicate()
    assert running.returncode == 0, said
    expected = by_ase(random_potential, atoms)
    first = np.loadtxt(tmp_path / "out.props")[0]
    assert first[1] == pytest.approx(expected["energy"], rel=1e-7)  # the digits it prints
    forces = ase.io.read(tmp_path / "out.frc_0.xyz", 0, format="xyz").positions
    np.testing.assert_allclose(forces, expected["forces"], atol=1e-6)  # digits of its files
    committee = np.loadtxt(tmp_path / "out.extras_0")[0] * units.Hartree
    assert committee.shape == (3,)
    assert committee.mean() == pytest.approx(expected["energy"], rel=1e-7)
    assert committee.std() == pytest.approx(expected["energy_epistemic"], rel=1e-4)
    energy, force, virial, text = answers(
        [atoms.cell.array.T / units.Bohr], [atoms.positions / units.Bohr]
    )[0]
    assert energy * units.Hartree == pytest.approx(expected["energy"], rel=1e-13)
    np.testing.assert_allclose(force * units.Hartree / units.Bohr, expected["forces"], atol=1e-9)
    extras = json.loads(text)
    assert extras["energy_uncertainty"] * units.Hartree == pytest.approx(
        expected["energy_uncertainty"], rel=1e-9
    )
    np.testing.assert_allclose(
        np.array(extras["forces_uncertainty"]) * units.Hartree / units.Bohr,
        expected["forces_uncertainty"],
        rtol=1e-9,
    )
    if atoms.pbc.all():
        tensor = -expected["stress"][[0, 5, 2]] * atoms.get_volume()
        np.testing.assert_allclose(virial[[0, 0, 2], [0, 1, 2]] * units.Hartree, tensor, atol=1e-9)
        pressure = -expected["stress"][[0, 1, 2, 5, 4, 3]] / units.GPa
        np.testing.assert_allclose(first[3:], pressure, rtol=5e-5)  # its GPa is 3e-5 off


def test_the_committee_is_reweighted_by_the_tool_of_ipi(
    random_potential: Potential, start_ipi: Ipi, tmp_path: Path
) -> None:
    """Cumulant expansion: ⟨a⟩ − β⟨(a − ⟨a⟩)(V − V̄)⟩ for each member's V."""
    atoms = structures()["molecule"]
    running, address = start_ipi(tmp_path, atoms, steps=5, extra="committee_pot")
    answers = IpiEvaluator(Evaluator(random_potential), atoms.numbers, atoms.pbc, committee=True)
    with connect(unix=address, host="", port=0, patience=300) as connection:
        serve(connection, answers)
    said, _ = running.communicate()
    assert running.returncode == 0, said
    tool, thermal = Path(sys.executable).parent / "i-pi-committee-reweight", 0.001
    command = [sys.executable, str(tool), "out.extras_0", "out.props", "--index", "1"]
    told = subprocess.run(
        [*command, "--kt", str(thermal)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = np.loadtxt(told.stdout.splitlines())
    energies, observed = np.loadtxt(tmp_path / "out.extras_0"), np.loadtxt(tmp_path / "out.props")
    assert energies.shape == (6, 3)
    away = (energies - energies.mean(1, keepdims=True)) / thermal
    centred = observed[:, 1] - observed[:, 1].mean()
    expected = observed[:, 1].mean() - (centred[:, None] * away).mean(0)
    np.testing.assert_allclose(found[2:], expected, rtol=1e-6)
    assert found[1] == pytest.approx(expected.std(), rel=1e-4)


def test_beads_are_one_batch(random_potential: Potential, start_ipi: Ipi, tmp_path: Path) -> None:
    atoms = structures()["molecule"]
    running, address = start_ipi(tmp_path, atoms, steps=3, batch=4, beads=4)
    counted: list[int] = []

    class Counting(IpiEvaluator):
        def __call__(self, cells, positions):  # type: ignore[no-untyped-def]
            counted.append(len(cells))
            return super().__call__(cells, positions)

    with connect(unix=address, host="", port=0, patience=300) as connection:
        serve(connection, Counting(Evaluator(random_potential), atoms.numbers, atoms.pbc))
    said, _ = running.communicate()
    assert running.returncode == 0, said
    assert set(counted) == {4}
    assert len(counted) == 4  # the start and three steps
    conserved = np.loadtxt(tmp_path / "out.props")[:, 2]
    assert np.ptp(conserved) < 0.01


def test_a_hot_run_ends_where_ours_does(
    potential: Potential, alloy: Atoms, start_ipi: Ipi, tmp_path: Path
) -> None:
    settings = DynamicsSettings("nve", temperature=3000.0, steps=60, timestep=1.0, seed=1)
    begin = alloy * (2, 1, 1)
    first, rule = late_rule(potential, begin, settings)
    *_, last = simulate(potential, frame_from_atoms(begin, keys=None), settings, rule=rule)
    numbers = first.get_velocities() / (units.Bohr / units._aut / units.s)
    listed = ",".join(map(repr, numbers.ravel().tolist()))
    given = f"<velocities mode='manual'> [{listed}] </velocities>"
    running, address = start_ipi(tmp_path, first, steps=60, timestep=1.0, velocities=given)
    potential.save(tmp_path / "model.bayrace")
    ase.io.write(tmp_path / "alloy.xyz", first)
    options = ["--unix", address, "--gap", "off", "--stop-file", str(tmp_path / "EXIT")]
    options += [
        "--max-force-error",
        repr(rule.max_force_error),
        "--probability",
        repr(rule.probability),
    ]
    paths = [str(tmp_path / "model.bayrace"), str(tmp_path / "alloy.xyz")]
    result = CliRunner().invoke(app, ["ipi", *paths, *options])
    running.communicate()
    assert result.exit_code == 3, result.output
    assert "the stop rule acted" in result.output
    steps = np.loadtxt(tmp_path / "out.props")[:, 0]
    assert abs(steps[-1] - last.step) <= 1


def test_a_driver_without_ipi_says_so(random_potential: Potential) -> None:
    with pytest.raises(
        ValueError, match=r"no i-PI answers at .*nobody.*start i-pi input.xml first"
    ):
        connect(unix="nobody", host="", port=0, patience=0)


def test_another_number_of_atoms_is_refused(random_potential: Potential) -> None:
    atoms = structures()["molecule"]
    answers = IpiEvaluator(Evaluator(random_potential), atoms.numbers, atoms.pbc)
    with pytest.raises(ValueError, match="i-PI sent 8 atoms, but the structure has 9"):
        answers([np.eye(3)], [atoms.positions[1:]])


def test_the_rule_must_see(make_potential: Callable[..., Potential]) -> None:
    from bayrace.models.noise import NoiseSpec

    blind = make_potential(noise=NoiseSpec("none", "extensive", "equivariant", stress=False))
    atoms = structures()["molecule"]
    answers = IpiEvaluator(Evaluator(blind, rule=StopRule(0.1, 0.1)), atoms.numbers, atoms.pbc)
    with pytest.raises(ValueError, match="predicts no uncertainty of forces"):
        answers([np.eye(3)], [atoms.positions / units.Bohr])
