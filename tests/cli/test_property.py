"""A property from its configuration to every command, with its own name and unit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from click.testing import Result

from bayrace.potential.potential import Potential

Command = Callable[..., Result]

CHARGES = {"H": 0.3, "C": -0.4, "O": -0.8, "N": -0.6}
KINDS = ("CH4", "H2O", "NH3", "CH3OH", "C2H6")
CONFIG = """
output: {folder}
data: {{train: {data}/train.xyz, valid: {data}/valid.xyz, test: {{test: {data}/test.xyz}}}}
target: {{name: dipole, unit: D, pooling: norm}}
model: {{preset: tiny}}
train: {{max_epochs: 3, batch_size: 8}}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shaken molecules of several sizes with the dipole of fixed charges."""
    folder = tmp_path_factory.mktemp("property")
    random = np.random.default_rng(0)
    for name, count in (("train", 30), ("valid", 20), ("test", 20), ("far", 20)):
        found = []
        for place in range(count):
            atoms = molecule(KINDS[place % len(KINDS)])
            atoms.positions += random.normal(
                scale=0.4 if name == "far" else 0.05, size=(len(atoms), 3)
            )
            charges = np.array([CHARGES[symbol] for symbol in atoms.symbols])
            centred = atoms.positions - atoms.positions.mean(0)
            atoms.info["dipole"] = float(np.linalg.norm((charges - charges.mean()) @ centred))
            found.append(atoms)
        ase.io.write(folder / f"{name}.xyz", found, format="extxyz")
    (folder / "config.yaml").write_text(
        CONFIG.format(folder=folder / "run", data=folder), encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="module")
def trained(files: Path, bayrace: Command) -> Path:
    """The potential of a run, whose output is kept."""
    result = bayrace("train", files / "config.yaml")
    assert result.exit_code == 0, result.output
    (files / "printed.txt").write_text(result.stdout, encoding="utf-8")
    return files / "run" / "model.bayrace"


def test_training_names_the_property_and_its_unit(trained: Path, files: Path) -> None:
    printed = (files / "printed.txt").read_text(encoding="utf-8")
    assert "target dipole in D, by the norm" in printed
    assert "MAE dipole" in printed
    assert "meV" not in printed
    potential = Potential.load(trained)
    assert (potential.target.name, potential.target.unit) == ("dipole", "D")
    assert potential.posterior.name == "distance"


def test_evaluate_predict_report_and_select(trained: Path, files: Path, bayrace: Command) -> None:
    tables = bayrace(
        "evaluate",
        trained,
        files / "test.xyz",
        "--ood",
        files / "far.xyz",
        "--json",
        files / "e.json",
    )
    assert tables.exit_code == 0, tables.output
    assert "dipole σ" in tables.stdout
    assert "eV" not in tables.stdout
    numbers = json.loads((files / "e.json").read_text(encoding="utf-8"))
    first_set = next(iter(numbers["sets"].values()))
    assert first_set["target"]["unit"] == "D"
    assert first_set["uncertainty"]["energy"]["coverage"]["90"] > 0.5
    predicted = bayrace("predict", trained, files / "test.xyz", "-o", files / "p.xyz")
    assert predicted.exit_code == 0, predicted.output
    first = ase.io.read(files / "p.xyz", index=0)
    assert first.info["dipole_unit"] == "D"
    assert first.info["dipole_uncertainty"] > 0
    label = ase.io.read(files / "test.xyz", index=0).calc.results["dipole"]
    assert first.info["REF_dipole"] == pytest.approx(label)
    predicted_dipole = first.calc.results["dipole"]  # by ASE's reader, which knows the name
    assert predicted_dipole != pytest.approx(label, abs=1e-9)
    page = files / "r.html"
    report = bayrace(
        "report", trained, "--test", files / "test.xyz", "--ood", files / "far.xyz", "-o", page
    )
    assert report.exit_code == 0, report.output
    text = page.read_text(encoding="utf-8")
    assert "Predicted against reference dipole" in text
    assert "meV" not in text.split("<script", 1)[0]
    chosen = bayrace("select", files / "far.xyz", "-m", trained, "-n", 3, "-o", files / "s.xyz")
    assert chosen.exit_code == 0, chosen.output
    assert len(ase.io.read(files / "s.xyz", index=":")) == 3


def test_a_calculator_refuses_it(trained: Path) -> None:
    from bayrace.deploy.ase import Calculator

    with pytest.raises(ValueError, match="predicts dipole"):
        Calculator(trained)


@pytest.mark.parametrize("posterior", ["llpr", "laplace", "swag", "ivon"])
def test_other_posteriors(trained: Path, files: Path, bayrace: Command, posterior: str) -> None:
    made = files / f"{posterior}.bayrace"
    result = bayrace("fit", trained, "--posterior", posterior, "--output", made)
    assert result.exit_code == 0, result.output
    potential = Potential.load(made)
    atoms = ase.io.read(files / "test.xyz", index=":")
    energy = potential.predict(atoms).energy
    assert bool((energy.std > 0).all())
    assert energy.mean.shape == (len(atoms),)


def test_what_a_property_cannot_have_is_refused(files: Path, bayrace: Command) -> None:
    for change, text in (
        ("loss.forces=10", "has no forces"),
        ("target={name: dipole}", "unit and its pooling"),
        ("target={name: energy, unit: eV, pooling: mean}", "sum in eV"),
        ("data.references={H: 1.0}", "those of dipole are fitted"),
    ):
        result = bayrace("train", files / "config.yaml", "-s", change, "-s", f"output={files}/no")
        assert result.exit_code == 2, change
        assert text in " ".join(result.output.split()), change
