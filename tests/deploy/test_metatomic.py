"""The exported TorchScript in metatomic's own calculator, against ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from typer.testing import CliRunner

from bayrace.cli.main import app
from bayrace.deploy.metatomic import export
from bayrace.models.race.network import Race
from bayrace.posterior.ensemble import Ensemble
from bayrace.potential.potential import Potential
from bayrace.testing import small_spec

from .engines import ELEMENTS, by_ase, structures

pytest.importorskip("metatomic.torch", reason="needs pip install 'bayrace[engines]'")
metatomic_ase = pytest.importorskip("metatomic_ase", reason="needs pip install metatomic-ase")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """metatomic and TorchScript warn of their own deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def rich(make_potential: Callable[..., Potential]) -> Potential:
    """With splines, products, gates and a short range, two members, float64."""
    start = make_potential(elements=ELEMENTS)
    spec = small_spec(
        ELEMENTS,
        radial_knots=16,
        self_contraction=True,
        pair_radial=True,
        gate=True,
        shortest=((1.2,) * 4,) * 4,
    )
    members = [Race(spec).init(seed, dtype=torch.float64) for seed in range(2)]
    return replace(start, spec=spec, posterior=Ensemble.of(members))


@pytest.fixture(scope="module")
def exported(rich: Potential, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert export(rich, path) == ("energy", "energy_uncertainty", "energy_ensemble")
    return path


def by_metatomic(path: Path, atoms: Atoms) -> Any:
    copy = atoms.copy()
    copy.calc = metatomic_ase.MetatomicCalculator(str(path), check_consistency=True)
    return copy


@pytest.mark.parametrize("name", structures())
def test_equal_to_ours(rich: Potential, exported: Path, name: str) -> None:
    atoms = structures()[name]
    expected = by_ase(rich, atoms)
    theirs = by_metatomic(exported, atoms)
    assert theirs.get_potential_energy() == pytest.approx(expected["energy"], abs=1e-9)
    np.testing.assert_allclose(theirs.get_forces(), expected["forces"], atol=1e-9)
    if atoms.pbc.all():
        np.testing.assert_allclose(theirs.get_stress(), expected["stress"], atol=1e-9)
    energies = theirs.calc.get_potential_energies(atoms)
    np.testing.assert_allclose(energies, expected["energies"], atol=1e-9)


def test_uncertainty_and_members(rich: Potential, exported: Path) -> None:
    from metatomic.torch import ModelOutput

    atoms = [structures()["triclinic"], structures()["small"]]
    expected = [by_ase(rich, each) for each in atoms]
    calculator = metatomic_ase.MetatomicCalculator(str(exported), check_consistency=True)
    outputs = {
        name: ModelOutput(unit="eV", sample_kind="system")
        for name in ("energy", "energy_uncertainty", "energy_ensemble")
    }
    found = {
        name: each.block().values for name, each in calculator.run_model(atoms, outputs).items()
    }
    np.testing.assert_allclose(
        found["energy_uncertainty"][:, 0].detach(),
        [each["energy_epistemic"] for each in expected],
        rtol=1e-6,
    )
    assert found["energy_ensemble"].shape == (2, 2)
    np.testing.assert_allclose(
        found["energy_ensemble"].mean(1).detach(), [each["energy"] for each in expected], rtol=1e-12
    )
    by_atom = {"energy_uncertainty": ModelOutput(unit="eV", sample_kind="atom")}
    single = calculator.run_model(atoms[0], by_atom)["energy_uncertainty"].block().values[:, 0]
    np.testing.assert_allclose(single.detach(), expected[0]["energies_epistemic"], rtol=1e-6)


def test_command_and_float32(rich: Potential, tmp_path: Path) -> None:
    model, path = tmp_path / "model.bayrace", tmp_path / "model.pt"
    rich.save(model)
    command = ["export", str(model), "--to", "metatomic", "--dtype", "float32", "-o", str(path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "energy_ensemble" in result.output
    atoms = structures()["triclinic"]
    expected = by_ase(rich.to(dtype="float32"), atoms)
    theirs = by_metatomic(path, atoms)
    np.testing.assert_allclose(theirs.get_forces(), expected["forces"], atol=1e-5)
    assert theirs.get_potential_energy() == pytest.approx(expected["energy"], rel=1e-6)
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "exists" in again.output
