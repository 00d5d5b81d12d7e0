"""Derived values: known answers with EMT, and their σ over the members of a posterior."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import add_adsorbate, bulk, fcc100, molecule
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from ase.vibrations import Vibrations
from typer.testing import CliRunner

from bayrace.cli.main import app
from bayrace.deploy.ase import Calculator
from bayrace.deploy.crystals import (
    NotRelaxedError,
    Relaxation,
    commensurate,
    elastic_constants,
    equation_of_state,
    minimum_energy_path,
    phonon_frequencies,
    relax,
    vibrations,
)
from bayrace.deploy.members import measure, members_of
from bayrace.deploy.properties import PropertySettings, properties, values_by
from bayrace.posterior.ensemble import Ensemble
from bayrace.posterior.point import Point
from bayrace.potential.potential import Potential


@pytest.fixture(scope="module")
def aluminium() -> Atoms:
    return relax(bulk("Al"), EMT(), Relaxation(1e-5, cell=True))


def test_bulk_modulus_twice(aluminium: Atoms) -> None:
    """By the energy of volumes, and by stresses: B = (C11 + 2 C12) / 3 of a cubic crystal."""
    volume, energy, modulus = equation_of_state(aluminium, EMT())
    assert volume == pytest.approx(aluminium.get_volume(), rel=1e-3)
    assert energy == pytest.approx(aluminium.get_potential_energy(), abs=1e-4)
    stiffness = elastic_constants(aluminium, EMT())
    assert (stiffness[0, 0] + 2 * stiffness[0, 1]) / 3 == pytest.approx(modulus, rel=0.02)
    np.testing.assert_allclose(np.diag(stiffness)[:3], stiffness[0, 0], rtol=1e-3)
    np.testing.assert_allclose(np.diag(stiffness)[3:], stiffness[3, 3], rtol=1e-3)


def test_phonons_against_a_frozen_one(aluminium: Atoms) -> None:
    pytest.importorskip("phonopy", reason="needs phonopy: pip install 'bayrace[engines]'")
    points, found = phonon_frequencies(aluminium, EMT(), supercell=(2, 2, 2))
    assert points.shape == (8, 3)
    np.testing.assert_allclose(found[0], 0.0, atol=1e-3)
    frozen = aluminium * (2, 2, 2)  # neighbouring (111) planes against each other: q = ½ ½ ½
    signs = np.array([(-1.0) ** sum(divmod(n % 4, 2)) * (-1.0) ** (n // 4) for n in range(8)])
    along = np.ones(3) / np.sqrt(3)
    frozen.positions += 0.005 * signs[:, None] * along
    frozen.calc = EMT()
    pull = -(frozen.get_forces() @ along * signs).mean() / 0.005  # eV/Å²
    mass = frozen.get_masses()[0]
    frequency = np.sqrt(pull / mass) * units.s / (2 * np.pi) / 1e12
    place = points.tolist().index([0.5, 0.5, 0.5])
    assert frequency == pytest.approx(found[place].max(), rel=5e-3)


def test_points_that_fit_a_supercell() -> None:
    points = commensurate((3, 1, 1))
    np.testing.assert_allclose(points, [[0, 0, 0], [1 / 3, 0, 0]])
    assert len(commensurate((2, 2, 2))) == 8


def test_vibrations_are_those_of_ase(tmp_path: Path) -> None:
    water = relax(molecule("H2O"), EMT(), Relaxation(1e-4))
    with_ase = Vibrations(water, name=str(tmp_path / "vib"), delta=0.005)
    with_ase.run()
    theirs = with_ase.get_frequencies()[-3:].real
    np.testing.assert_allclose(vibrations(water, EMT())[-3:], theirs, rtol=1e-4)


def test_a_path_over_a_barrier() -> None:
    """An atom hops between equal hollows of a surface: the path is as high from both sides."""
    slab = fcc100("Al", (2, 2, 2), vacuum=6.0)
    slab.constraints = FixAtoms(mask=slab.get_tags() > 1)
    ends = [slab.copy(), slab.copy()]
    for end, shift in zip(ends, (0.0, slab.cell[0, 0] / 2), strict=True):
        add_adsorbate(end, "Al", 1.7, "hollow")
        end.positions[-1, 0] += shift
    first, last = (relax(end, EMT(), Relaxation(0.02)) for end in ends)
    settings = Relaxation(0.05, 200)
    path = minimum_energy_path((first, last), EMT(), images=5, relaxation=settings)
    energies = np.array([image.get_potential_energy() for image in path])
    np.testing.assert_allclose(energies, energies[::-1], atol=0.01)
    assert energies[2] - energies[0] > 0.1
    with pytest.raises(NotRelaxedError, match="the path is not relaxed after 1 steps"):
        minimum_energy_path((first, last), EMT(), images=5, relaxation=Relaxation(1e-4, 1))


def test_members_are_the_potentials_of_an_ensemble(potential: Potential, alloy: Atoms) -> None:
    members = members_of(potential)
    found = measure(members, lambda member: member.predict(alloy).energy.mean.numpy(), factor=2.0)
    whole = potential.predict(alloy)
    assert found.mean[0] == pytest.approx(float(whole.energy.mean[0]), abs=1e-9)
    expected = 2 * np.sqrt(2) * float(whole.energy.epistemic[0].sqrt())  # M − 1 in place of M
    assert found.std[0] == pytest.approx(expected, rel=1e-6)


def test_a_point_has_no_members(potential: Potential) -> None:
    first = {name: value[0] for name, value in potential.members.items()}
    with pytest.raises(ValueError, match="has one set of weights"):
        members_of(replace(potential, posterior=Point(first)))


def test_properties_of_members(potential: Potential, alloy: Atoms, tmp_path: Path) -> None:
    settings = PropertySettings(("eos",), relaxation=Relaxation(0.01))
    found = properties(potential, alloy, settings)
    assert [each.unit for each in found] == ["Å³/atom", "eV/atom", "GPa"]
    single = [
        values_by(Calculator(m, uncertainty=False), alloy, settings) for m in members_of(potential)
    ]
    np.testing.assert_allclose([each.mean for each in found], np.mean(single, axis=0))
    np.testing.assert_allclose([each.std for each in found], np.std(single, axis=0, ddof=1))
    potential.save(tmp_path / "model.bayrace")
    ase.io.write(tmp_path / "alloy.xyz", alloy)
    paths = [str(tmp_path / "model.bayrace"), str(tmp_path / "alloy.xyz")]
    options = ["--what", "eos", "--max-force", "0.01", "-o", str(tmp_path / "eos.json")]
    result = CliRunner().invoke(app, ["properties", *paths, *options])
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "eos.json").read_text())
    assert [row["name"] for row in written] == ["volume", "energy", "bulk modulus"]
    assert written[0]["mean"] == pytest.approx(found[0].mean, rel=1e-5)
    wrong = CliRunner().invoke(app, ["properties", *paths, "--what", "vibrations"])
    assert wrong.exit_code == 2
    assert "needs a molecule" in wrong.output


def test_relax_command(potential: Potential, alloy: Atoms, tmp_path: Path) -> None:
    potential.save(tmp_path / "model.bayrace")
    structures = []
    for seed in range(2):
        atoms = alloy.copy()
        atoms.rattle(0.1, seed=seed)
        structures.append(atoms)
    ase.io.write(tmp_path / "start.xyz", structures)
    paths = [str(tmp_path / "model.bayrace"), str(tmp_path / "start.xyz")]
    target = tmp_path / "relaxed.xyz"
    result = CliRunner().invoke(app, ["relax", *paths, "--cell", "-o", str(target)])
    assert result.exit_code == 0, result.output
    relaxed = ase.io.read(target, ":")
    assert len(relaxed) == 2
    for atoms in relaxed:
        assert np.abs(atoms.get_forces()).max() < 0.01
        assert atoms.info["energy_uncertainty"] > 0
        assert atoms.arrays["forces_uncertainty"].shape == (4, 3)


def test_neb_command(make_potential: Callable[..., Potential], tmp_path: Path) -> None:
    """A flat potential has no barrier, and every path is relaxed."""
    start = make_potential(elements=(1, 6, 8))
    flat = {name: torch.zeros_like(value) for name, value in start.members.items()}
    members = {name: torch.cat([value, value]) for name, value in flat.items()}
    replace(start, posterior=Ensemble(members)).save(tmp_path / "model.bayrace")
    ends = [molecule("CH3CH2OH"), molecule("CH3CH2OH")]
    ends[1].rattle(0.2, seed=0)
    names = [str(tmp_path / f"{n}.xyz") for n in range(2)]
    for name, end in zip(names, ends, strict=True):
        ase.io.write(name, end)
    target = tmp_path / "path.xyz"
    command = ["neb", str(tmp_path / "model.bayrace"), *names, "--images", "4", "-o", str(target)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "barrier 0.0000 ± 0.0000 eV" in result.output
    path = ase.io.read(target, ":")
    assert len(path) == 4
    assert all(image.info["relative_energy_std"] == 0.0 for image in path)
