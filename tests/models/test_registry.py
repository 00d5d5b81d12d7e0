"""Models go by their name: a foreign module from its registration to dynamics, and entry points."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

import bayrace
from bayrace import models
from bayrace.cli.main import app
from bayrace.models.race.spec import RaceSpec
from bayrace.posterior.point import Point
from bayrace.potential import artifact
from bayrace.potential.potential import Potential, PotentialError
from bayrace.testing import random_frame
from bayrace.testing.modules import TinySpec

ZERO = {11: -3.0, 17: 1.5}  # eV, between the energies of the module and those of the labels


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.MODELS, "_registered", {})
    models.register(TinySpec)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rattled salt whose labels are those of the module with other weights, shifted."""
    folder = tmp_path_factory.mktemp("salt")
    truth = TinySpec((11, 17), 4.5, seed=1)
    weights = truth.build().init(0)
    random = np.random.default_rng(0)
    noise = torch.Generator().manual_seed(0)
    noisy = {k: v * (1 + 0.1 * torch.randn(v.shape, generator=noise)) for k, v in weights.items()}
    # built here, so that nothing needs the registry
    oracle = _potential(truth, noisy)
    for name, count, rattle in (("home", 40, 0.08), ("test", 12, 0.08), ("far", 12, 0.5)):
        images = []
        for _ in range(count):
            atoms = bulk("NaCl", "rocksalt", 5.6, cubic=True)
            atoms.positions += random.normal(size=(8, 3)) * rattle
            images.append(_labelled(atoms, oracle))
        ase.io.write(folder / f"{name}.xyz", images)
    return folder


def _potential(spec: TinySpec, params: dict[str, torch.Tensor]) -> Potential:
    return Potential(
        spec=spec,
        posterior=Point(params),
        references=ZERO,
        lambdas=bayrace.models.noise.Lambdas(1.0, 1.0, 1.0),
        statistics={},
        config={},
        fingerprint="0" * 64,
    )


def _labelled(atoms: Atoms, oracle: Potential) -> Atoms:
    found = oracle.predict(atoms, stress=True)
    assert found.stress is not None
    atoms.calc = SinglePointCalculator(
        atoms,
        energy=float(found.energy.mean[0]),
        forces=found.forces.mean.numpy(),
        stress=found.stress.mean[0].numpy(),
    )
    return atoms


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("posterior", ["distance", "llpr"])
def test_a_foreign_module_from_data_to_dynamics(data: Path, tmp_path: Path, posterior: str) -> None:
    file = tmp_path / "tiny.bayrace"
    spec = TinySpec((11, 17), 4.5, seed=1)
    adopted = bayrace.adopt(spec, data / "home.xyz", posterior=posterior)
    adopted.save(file)

    loaded = Potential.load(file)
    assert loaded.spec == spec
    home, far = (ase.io.read(data / f"{name}.xyz", ":") for name in ("test", "far"))
    before, after = adopted.predict(home), loaded.predict(home)
    assert torch.equal(before.forces.mean, after.forces.mean)
    # tensors of a file lie otherwise in memory, so that sums are rounded otherwise
    torch.testing.assert_close(before.energy.std, after.energy.std, rtol=1e-9, atol=0)
    labels = torch.tensor([atoms.get_potential_energy() for atoms in home])
    assert float((after.energy.mean - labels).abs().max()) < 0.1  # not 6 eV, without a shift
    away = loaded.predict(far)
    assert float(away.forces.level.median()) > 2 * float(after.forces.level.median())
    assert float(away.energy.std.median()) > 2 * float(after.energy.std.median())

    atoms = home[0].copy()
    atoms.calc = bayrace.Calculator(loaded)
    assert np.allclose(atoms.get_forces(), after.forces.mean[:8], atol=1e-5)
    assert atoms.calc.results["forces_uncertainty"].shape == (8, 3)

    assert "energy" in run("evaluate", file, data / "test.xyz", "--ood", data / "far.xyz")
    run("calibrate", file, data / "test.xyz", "-o", tmp_path / "again.bayrace")
    assert Potential.load(tmp_path / "again.bayrace").calibration is not None
    chosen = tmp_path / "chosen.xyz"
    run("select", data / "far.xyz", "--model", file, "--budget", 2, "-o", chosen)
    assert len(ase.io.read(chosen, ":")) == 2
    start = f"{data}/test.xyz@0"
    common = ("md", file, start, "--temperature", 50, "--gap", "off", "--overwrite")
    run(*common, "--steps", 4, "--max-force-error", 100, "-o", tmp_path / "calm.traj")
    assert "stopped" in run(
        *common, "--steps", 4, "--max-force-error", 1e-6, "-o", tmp_path / "s.traj", code=3
    )
    assert "tiny-foreign" in run("info", file)


@pytest.mark.usefixtures("registered")
def test_the_file_names_the_model_and_holds_its_last_layer_alone(
    data: Path, tmp_path: Path
) -> None:
    adopted = bayrace.adopt(TinySpec((11, 17), 4.5, seed=1), data / "home.xyz")
    adopted.save(tmp_path / "tiny.bayrace")
    contents = artifact.read(tmp_path / "tiny.bayrace")
    assert contents.document["model"] == "tiny-foreign"
    weights = [name for name in contents.tensors if "params/" in name]
    assert weights == ["posterior/params/out.weight"]


@pytest.mark.usefixtures("registered")
def test_a_model_that_nobody_knows(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bayrace.adopt(TinySpec((11, 17), 4.5, seed=1), data / "home.xyz").save(tmp_path / "t.bayrace")
    monkeypatch.setattr(models.MODELS, "_registered", {})
    with pytest.raises(PotentialError, match="'tiny-foreign' is unknown"):
        Potential.load(tmp_path / "t.bayrace")


@pytest.mark.usefixtures("registered")
def test_names_are_taken_once() -> None:
    models.register(TinySpec)  # the same again is no other
    with pytest.raises(ValueError, match="known already"):
        models.register(type("Other", (TinySpec,), {}))
    with pytest.raises(ValueError, match="'race' is known already"):
        models.register(type("Mine", (TinySpec,), {"name": "race"}))


def test_entry_points_of_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package on the path with metadata of its own, as pip leaves it."""
    (tmp_path / "their_package.py").write_text(
        "from bayrace.testing.modules import TinySpec\n"
        "class TheirSpec(TinySpec):\n    name = 'theirs'\n",
        encoding="utf-8",
    )
    about = tmp_path / "their_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[{models.MODELS.group}]\ntheirs = their_package:TheirSpec\n"
    )
    monkeypatch.setattr(models.MODELS, "_registered", {})
    with pytest.raises(ValueError, match="'theirs' is unknown"):
        models.spec_class("theirs")
    monkeypatch.syspath_prepend(tmp_path)
    assert "theirs" in models.model_names()
    assert models.spec_class("theirs").__module__ == "their_package"


def test_files_without_a_name_hold_race(make_potential, tmp_path: Path) -> None:
    potential = make_potential()
    potential.save(tmp_path / "new.bayrace")
    contents = artifact.read(tmp_path / "new.bayrace")
    document = dict(contents.document)
    assert document.pop("model") == "race"
    (tmp_path / "old.bayrace").write_bytes(artifact.encode(document, contents.tensors))
    old = Potential.load(tmp_path / "old.bayrace")
    assert isinstance(old.spec, RaceSpec)
    frame = random_frame((1, 6, 8), 6, seed=2)
    assert torch.equal(old.predict(frame).energy.mean, potential.predict(frame).energy.mean)
    json.dumps(document)


def test_a_network_of_ours_is_trained_not_adopted(make_potential, data: Path) -> None:
    spec = replace(make_potential(elements=(11, 17)).spec)
    with pytest.raises(ValueError, match="train it instead"):
        bayrace.adopt(spec, data / "home.xyz")
