from __future__ import annotations

import ase.io
import numpy as np


def test_a_report_of_good_files(bayrace, data):
    result = bayrace("validate", data / "train.xyz", data / "hot.xyz")
    assert result.exit_code == 0, result.output
    for text in ("train.xyz", "structures", "12", "H 72, C 24, O 12", "FFF 12", "no problems"):
        assert text in result.stdout


def test_every_problem_is_listed(bayrace, data, tmp_path):
    atoms = ase.io.read(data / "train.xyz", index=":4")
    atoms[1].calc.results["forces"][3, 1] = np.nan
    atoms[2].positions[1] = atoms[2].positions[0] + 0.01
    atoms[2].calc.atoms = atoms[2].copy()
    ase.io.write(tmp_path / "bad.xyz", atoms, format="extxyz")
    (tmp_path / "cut.xyz").write_text((data / "test.xyz").read_text()[:-300])
    result = bayrace("validate", tmp_path / "bad.xyz", tmp_path / "cut.xyz", data / "test.xyz")
    assert result.exit_code == 1
    assert "frame 1: forces of atom 3 is nan" in result.stdout
    assert "frame 2: atoms" in result.stdout
    assert "cut.xyz, frame 3" in result.stdout
    assert "FFF 4" in result.stdout  # the good file is still described


def test_duplicates_are_only_warnings(bayrace, data, tmp_path):
    (tmp_path / "copy.xyz").write_text((data / "test.xyz").read_text())
    result = bayrace("validate", data / "test.xyz", tmp_path / "copy.xyz")
    assert result.exit_code == 0
    assert result.stdout.count("same geometry:") == 4


def test_no_forces_anywhere(bayrace, data, tmp_path):
    atoms = ase.io.read(data / "test.xyz", index=":")
    for each in atoms:
        del each.calc.results["forces"]
    ase.io.write(tmp_path / "energies.xyz", atoms, format="extxyz")
    result = bayrace("validate", tmp_path / "energies.xyz")
    assert result.exit_code == 1
    assert "none of the 4 frames has a label for forces" in result.stdout
    assert bayrace("validate", tmp_path / "energies.xyz", data / "train.xyz").exit_code == 0


def test_the_data_of_a_configuration(bayrace, trained):
    result = bayrace("validate", "--config", trained / "config.yaml")
    assert result.exit_code == 0, result.output
    for name in ("train", "valid", "test cold", "test hot"):
        assert f"{name}\n" in result.stdout.replace(" \n", "\n")


def test_nothing_given(bayrace):
    result = bayrace("validate")
    assert result.exit_code == 2
    assert "give data files, or --config" in result.stderr


def test_shortest_distances_and_strange_units(bayrace, data, tmp_path):
    good = bayrace("validate", data / "train.xyz")
    assert "shortest distances (Å)" in good.stdout
    assert "H-C 1.0" in good.stdout
    assert "doubt:" not in good.stdout
    atoms = ase.io.read(data / "train.xyz", index=":")
    for each in atoms:
        each.calc.results["forces"] *= -1
    ase.io.write(tmp_path / "gradients.xyz", atoms, format="extxyz")
    result = bayrace("validate", tmp_path / "gradients.xyz")
    assert result.exit_code == 0
    assert "doubt:" in result.stdout
    assert "change their sign" in result.stdout


def test_all_shows_everything(bayrace, data, tmp_path):
    atoms = ase.io.read(data / "train.xyz", index=":")
    for each in atoms:
        each.calc.results["energy"] = np.nan
    ase.io.write(tmp_path / "bad.xyz", atoms, format="extxyz")
    some = bayrace("validate", tmp_path / "bad.xyz")
    assert some.stdout.count("energy is nan") == 10
    assert "problem: and 2 more; --all shows them" in some.stdout
    assert bayrace("validate", tmp_path / "bad.xyz", "--all").stdout.count("energy is nan") == 12
