from __future__ import annotations

import json

import ase.io
import numpy as np
import pytest
import torch

from bayrace.data.frame import frame_from_atoms
from bayrace.likelihood.robust import robust_scale
from bayrace.potential.potential import Potential


@pytest.fixture(scope="module")
def calibrated(bayrace, model, tmp_path_factory):
    """Scaled on the validation set of the run."""
    target = tmp_path_factory.mktemp("calibrated") / "new.bayrace"
    result = bayrace("calibrate", model, "-o", target)
    assert result.exit_code == 0, result.output
    assert str(target) in result.stdout
    return target, result.stdout


def test_only_uncertainties_change(model, data, calibrated):
    atoms = ase.io.read(data / "test.xyz", index=":")
    old, new = Potential.load(model), Potential.load(calibrated[0])
    before, after = old.predict(atoms), new.predict(atoms)
    assert torch.equal(before.energy.mean, after.energy.mean)
    assert torch.equal(before.forces.mean, after.forces.mean)
    calibration = new.calibration
    torch.testing.assert_close(after.energy.std, calibration.energy.factor * before.energy.std)
    square = calibration.forces.factor**2
    torch.testing.assert_close(after.forces.total, square * before.forces.total)
    assert calibration.energy.factor != pytest.approx(1, rel=0.01)


def test_the_validation_set_is_the_default(model, data, calibrated):
    potential = Potential.load(calibrated[0])
    assert potential.calibration.method == "scale"
    assert potential.calibration.frames == 3
    np.testing.assert_array_equal(potential.frames["calibration"], potential.frames["valid"])
    raw = Potential.load(model)
    chosen = [
        atoms
        for atoms in ase.io.read(data / "train.xyz", index=":")
        if _hash(atoms) in potential.frames["valid"]
    ]
    assert len(chosen) == 3
    energy = raw.predict(chosen).energy
    error = np.array([atoms.get_potential_energy() for atoms in chosen]) - energy.mean.numpy()
    expected = 3**0.5 * robust_scale(error / energy.std.numpy())  # three say little of a fourth
    assert potential.calibration.energy.factor == pytest.approx(expected)


def _hash(atoms):
    from bayrace.data.frame import LabelKeys
    from bayrace.data.split import frame_hashes

    keys = LabelKeys(None, None, None, None, None)
    return frame_hashes([frame_from_atoms(atoms, keys=keys)])[0]


def test_the_table_says_what_it_was_fitted_to(calibrated):
    text = calibrated[1]
    assert "validation set: 3 frames, the ones fitted to" in text
    assert "on new frames the error after is larger" in text


def test_evaluate_warns_of_calibration_frames(bayrace, data, calibrated):
    result = bayrace("evaluate", calibrated[0], data / "train.xyz")
    assert "3 for validation, 3 for calibration" in result.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.xyz", "9 of 12 frames were used for training"),
        ("test.xyz", "4 of 4 frames were used for testing"),
    ],
)
def test_frames_that_are_refused(bayrace, model, data, tmp_path, name, message):
    result = bayrace("calibrate", model, data / name, "-o", tmp_path / "new.bayrace")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def others(data, tmp_path):
    """Thirty frames that the run does not know, with labels of their own."""
    generator = np.random.default_rng(0)
    images = []
    for atoms in ase.io.read(data / "train.xyz", index=":") * 3:
        forces, energy = atoms.get_forces(), atoms.get_potential_energy()
        moved = atoms.copy()
        moved.positions += generator.normal(scale=0.01, size=forces.shape)
        moved.info["my_energy"], moved.arrays["my_forces"] = energy, forces
        images.append(moved)
    ase.io.write(tmp_path / "others.xyz", images[:30], format="extxyz")
    return tmp_path / "others.xyz"


@pytest.mark.parametrize("method", ["scale-element", "isotonic", "conformal"])
def test_other_files_and_methods(bayrace, model, others, tmp_path, method):
    keys = ("--energy-key", "my_energy", "--forces-key", "my_forces")
    target = tmp_path / "new.bayrace"
    result = bayrace("calibrate", model, others, "--method", method, *keys, "-o", target)
    assert result.exit_code == 0, result.output
    potential = Potential.load(target)
    assert potential.calibration.method == method
    assert potential.calibration.energy.count == 30
    atoms = ase.io.read(others, index="0")
    before, after = Potential.load(model).predict(atoms), potential.predict(atoms)
    assert torch.equal(before.forces.mean, after.forces.mean)
    assert (after.energy.shape is None) == (method == "scale-element")
    if method == "scale-element":
        assert set(potential.calibration.forces.by_element) == {1, 6, 8}
        factors = potential.calibration.forces.factors(atoms.numbers)
        expected = factors[:, None] * before.forces.std.numpy()
        np.testing.assert_allclose(after.forces.std.numpy(), expected)


def test_recalibrating_starts_from_the_raw_uncertainties(bayrace, model, others, tmp_path):
    keys = ("--energy-key", "my_energy", "--forces-key", "my_forces")
    for source, target in (
        (model, "first.bayrace"),
        (tmp_path / "first.bayrace", "second.bayrace"),
    ):
        arguments = ("calibrate", source, others, *keys, "--method", "isotonic")
        assert bayrace(*arguments, "-o", tmp_path / target).exit_code == 0
    first, second = (Potential.load(tmp_path / f"{n}.bayrace") for n in ("first", "second"))
    assert first.calibration == second.calibration


def test_too_few_frames(bayrace, model):
    result = bayrace("calibrate", model, "--method", "isotonic")
    assert result.exit_code == 2
    assert "3 errors for an isotonic calibration, which needs 20" in result.stderr


def test_a_potential_without_noise(bayrace, data, tmp_path, make_potential):
    from bayrace.models.noise import NO_NOISE

    make_potential(noise=NO_NOISE).save(tmp_path / "point.bayrace")
    result = bayrace("calibrate", tmp_path / "point.bayrace", data / "test.xyz")
    assert result.exit_code == 2
    assert "nothing to calibrate; train with a likelihood" in result.stderr
    assert "does not say which frames it was trained on" in result.stderr


def test_changed_data_are_noticed(bayrace, model, data, tmp_path):
    from dataclasses import replace

    potential = Potential.load(model)
    config = json.loads(json.dumps(potential.config))
    config["data"]["train"] = [str(data / "hot.xyz")]
    changed = replace(potential, config=config)
    changed.save(tmp_path / "changed.bayrace")
    result = bayrace("calibrate", tmp_path / "changed.bayrace")
    assert result.exit_code == 2
    assert "the data are not those that the potential was trained on" in result.stderr
