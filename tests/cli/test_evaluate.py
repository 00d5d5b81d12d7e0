from __future__ import annotations

import json

import ase.io
import numpy as np
import pytest

from bayrace.potential.potential import Potential


def test_tables_and_json_agree_with_the_potential(bayrace, model, data, tmp_path):
    target = tmp_path / "errors.json"
    result = bayrace("evaluate", model, data / "test.xyz", data / "hot.xyz", "--json", target)
    assert result.exit_code == 0, result.output
    sets = json.loads(target.read_text())["sets"]
    assert list(sets) == ["test.xyz", "hot.xyz"]
    atoms = ase.io.read(data / "test.xyz", index=":")
    prediction = Potential.load(model).predict(atoms)
    labels = np.concatenate([each.get_forces() for each in atoms])
    error = prediction.forces.mean.numpy() - labels
    rmse = np.sqrt(np.mean(error**2))
    assert sets["test.xyz"]["forces"]["rmse"] == pytest.approx(rmse)
    spread = np.sqrt(np.mean(prediction.forces.std.numpy() ** 2))
    assert sets["test.xyz"]["predicted_std"]["forces"] == pytest.approx(spread)
    row = next(line for line in result.stdout.splitlines() if "forces " in line)
    assert f"{1000 * rmse:.2f}" in row
    assert f"{1000 * spread:.2f}" in row


@pytest.fixture(scope="module")
def without_forces(bayrace, data, tmp_path_factory):
    """A potential of energies alone, which knows no σ of forces."""
    folder = tmp_path_factory.mktemp("energies")
    atoms = ase.io.read(data / "train.xyz", index=":")
    for each in atoms:
        del each.calc.results["forces"]
    ase.io.write(folder / "energies.xyz", atoms, format="extxyz")
    changes = ("model.preset=tiny", "train.max_epochs=1", "loss.kind=nll_e", "loss.forces=0")
    options = [part for change in (*changes, f"output={folder}/run") for part in ("-s", change)]
    assert bayrace("train", folder / "energies.xyz", *options).exit_code == 0
    return folder / "run" / "model.bayrace"


def test_sigma_of_forces_that_were_never_labelled_is_explained(
    bayrace, model, data, without_forces
):
    shown = bayrace("evaluate", without_forces, data / "test.xyz").stdout
    assert "nan: not known, as the training data had no such labels" in shown
    assert "nan:" not in bayrace("evaluate", model, data / "test.xyz").stdout


def test_a_potential_of_energies_alone_is_reported_and_selects_by_energies(
    bayrace, data, without_forces, tmp_path
):
    sets = ("--test", data / "test.xyz", "--ood", data / "hot.xyz")
    report = bayrace("report", without_forces, *sets, "-o", tmp_path / "report.html")
    assert report.exit_code == 0, report.output
    assert "σ of the energies of “test”" in report.stdout
    assert "σ of the forces" not in report.stdout
    chosen = ("-n", 1, "-o", tmp_path / "chosen.xyz")
    select = bayrace("select", data / "hot.xyz", "-m", without_forces, *chosen)
    assert select.exit_code == 0, select.output
    assert "by bald-energy" in select.stdout


def test_dynamics_without_known_forces_say_what_to_do(bayrace, data, without_forces, tmp_path):
    options = ("--temperature", 300, "--steps", 1, "-o", tmp_path / "md.traj")
    refused = bayrace("md", without_forces, data / "test.xyz@0", *options)
    assert "go without the rule, --action off" in refused.stderr
    free = bayrace(
        "md", without_forces, data / "test.xyz@0", *options, "--action", "off", "--overwrite"
    )
    assert free.exit_code == 0, free.output


def test_no_bar_and_no_empty_lines_where_there_is_no_terminal(bayrace, model, data):
    assert bayrace("evaluate", model, data / "test.xyz").stderr == ""


def test_config_types_have_their_own_rows(bayrace, model, data, tmp_path):
    atoms = ase.io.read(data / "test.xyz", index=":")
    for place, each in enumerate(atoms):
        each.info["config_type"] = "even" if place % 2 == 0 else "odd"
    ase.io.write(tmp_path / "typed.xyz", atoms, format="extxyz")
    result = bayrace("evaluate", model, tmp_path / "typed.xyz")
    assert "forces [even]" in result.stdout
    assert "energy [odd]" in result.stdout


def test_other_label_keys(bayrace, model, data, tmp_path):
    atoms = ase.io.read(data / "test.xyz", index=":")
    for each in atoms:
        each.info["DFT_energy"] = each.get_potential_energy()
        each.arrays["DFT_forces"] = each.get_forces()
        each.calc = None
    ase.io.write(tmp_path / "keys.xyz", atoms, format="extxyz")
    refused = bayrace("evaluate", model, tmp_path / "keys.xyz")
    assert refused.exit_code == 2
    assert "no frame has an energy or forces to compare with" in refused.stderr
    keys = ("--energy-key", "DFT_energy", "--forces-key", "DFT_forces")
    assert bayrace("evaluate", model, tmp_path / "keys.xyz", *keys).exit_code == 0


def test_figures(bayrace, model, data, tmp_path):
    result = bayrace("evaluate", model, data / "test.xyz", "--figures", tmp_path / "figures")
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"parity.png", "error-against-sigma.png", "sigma.png"}


def test_an_element_that_training_did_not_have(bayrace, model, data, tmp_path):
    atoms = ase.io.read(data / "test.xyz", index=0)
    atoms.symbols[0] = "N"
    ase.io.write(tmp_path / "nitrogen.xyz", atoms, format="extxyz")
    result = bayrace("predict", model, tmp_path / "nitrogen.xyz", "-o", tmp_path / "out.xyz")
    assert result.exit_code == 2
    assert "is N, which the training data did not have" in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "nitrogen.xyz"]


def test_something_that_is_no_potential(bayrace, data):
    result = bayrace("evaluate", data / "train.xyz", data / "test.xyz")
    assert result.exit_code == 2
    assert "is not a bayrace potential" in result.stderr


def test_uncertainties_are_judged(bayrace, model, data, tmp_path):
    target = tmp_path / "errors.json"
    result = bayrace("evaluate", model, data / "test.xyz", "--json", target)
    assert "test.xyz: quality of the predicted σ" in result.stdout
    found = json.loads(target.read_text())["sets"]["test.xyz"]["uncertainty"]
    _, table = result.stdout.split("quality of the predicted σ")
    row = next(line for line in table.splitlines() if line.startswith("│ forces "))
    assert f"{found['forces']['calibration_error']:.5f}" in row
    assert "forces, whitened" in result.stdout
    assert "forces on O" in result.stdout


def test_the_unknown_is_told_from_the_known(bayrace, model, data, tmp_path):
    target = tmp_path / "errors.json"
    arguments = (model, data / "test.xyz", "--ood", data / "hot.xyz", "--json", target)
    result = bayrace("evaluate", *arguments)
    assert result.exit_code == 0, result.output
    assert "hot.xyz (unknown) against test.xyz (known)" in result.stdout
    found = json.loads(target.read_text())["detection"]["hot.xyz"]
    assert found["energy_epistemic"] is None  # one member
    score = found["energy_total"]
    assert (score["known"], score["unknown"]) == (4, 4)
    potential = Potential.load(model)

    def spread(name):
        return potential.predict(ase.io.read(data / name, index=":")).energy.std.numpy()

    known, unknown = spread("test.xyz"), spread("hot.xyz")
    assert score["auroc"] == pytest.approx(np.mean(unknown[:, None] > known[None]))
    assert f"{score['auroc']:.3f}" in result.stdout


def test_an_unknown_element_is_detected_without_a_prediction(bayrace, model, data, tmp_path):
    """Two of four hot frames have fluorine: above all known ones, whatever σ says of the others."""
    images = ase.io.read(data / "hot.xyz", index=":")
    before = [atoms.copy() for atoms in images]
    for fluorinated in images[1:3]:
        fluorinated.symbols[0] = "F"
    ase.io.write(tmp_path / "mixed.xyz", images, format="extxyz")
    ase.io.write(tmp_path / "strange.xyz", images[1:3], format="extxyz")
    target = tmp_path / "errors.json"
    sets = ("--ood", tmp_path / "mixed.xyz", "--ood", tmp_path / "strange.xyz")
    result = bayrace("evaluate", model, data / "test.xyz", *sets, "--json", target)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "mixed.xyz: 2 of 4 structures have F, which the training data did not have" in said
    assert "strange.xyz: 2 of 2 structures have F" in said
    content = json.loads(target.read_text())
    assert set(content["sets"]) == {"test.xyz", "mixed.xyz"}
    assert content["unknown_elements"]["mixed.xyz"] == {"frames": 2, "elements": [9]}
    potential = Potential.load(model)
    known = potential.predict(ase.io.read(data / "test.xyz", index=":")).energy.std.numpy()
    usual = potential.predict([before[0], before[3]]).energy.std.numpy()
    expected = np.append(usual[:, None] > known[None], np.ones((2, len(known)), dtype=bool))
    score = content["detection"]["mixed.xyz"]["energy_total"]
    assert (score["known"], score["unknown"]) == (4, 4)
    assert score["auroc"] == pytest.approx(np.mean(expected))
    assert content["detection"]["strange.xyz"]["forces_max_total"]["auroc"] == 1.0
    assert content["detection"]["strange.xyz"]["energy_total"]["aupr"] == 1.0
    refused = bayrace("evaluate", model, tmp_path / "mixed.xyz")  # known structures must be known
    assert refused.exit_code == 2
    assert "is F, which the training data did not have" in refused.stderr


def test_frames_of_the_training_are_warned_of(bayrace, model, data):
    result = bayrace("evaluate", model, data / "train.xyz")
    assert result.exit_code == 0, result.output
    expected = "train.xyz: of 12 frames, this potential used 9 for training, 3 for validation"
    assert expected in result.stderr
    assert "warning" not in bayrace("evaluate", model, data / "test.xyz").stderr


def test_a_potential_without_noise(bayrace, data, tmp_path, make_potential):
    from bayrace.models.noise import NO_NOISE

    make_potential(noise=NO_NOISE).save(tmp_path / "point.bayrace")
    arguments = (tmp_path / "point.bayrace", data / "test.xyz", "--ood", data / "hot.xyz")
    result = bayrace("evaluate", *arguments, "--json", tmp_path / "errors.json")
    assert result.exit_code == 0, result.output
    assert "quality of the predicted σ" not in result.stdout
    assert "hot.xyz: no σ is predicted" in result.stdout
    assert "NaN" not in (tmp_path / "errors.json").read_text()
