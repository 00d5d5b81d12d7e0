from __future__ import annotations

from dataclasses import replace

import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

from bayrace.config import make_config
from bayrace.data.check import problems
from bayrace.data.embedded import embedded_frames
from bayrace.workflow.prepare import label_needs


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


@pytest.mark.parametrize("label", ["energy", "forces"])
def test_no_such_label_anywhere(label, bayrace, data, tmp_path):
    atoms = ase.io.read(data / "test.xyz", index=":")
    for each in atoms:
        del each.calc.results[label]
    ase.io.write(tmp_path / "without.xyz", atoms, format="extxyz")
    result = bayrace("validate", tmp_path / "without.xyz")
    assert result.exit_code == 1
    assert f"none of the 4 frames has a label for {label}" in result.stdout
    assert bayrace("validate", tmp_path / "without.xyz", data / "train.xyz").exit_code == 0


@pytest.mark.parametrize("label", ["energy", "forces", "stress"])
def test_the_remedy_for_a_missing_label_is_a_configuration(label):
    frame = embedded_frames("ethanol-train")[0]
    needs = dict.fromkeys(("need_energy", "need_forces", "need_stress"), False)
    (problem,) = problems([replace(frame, **{label: None})], **{**needs, f"need_{label}": True})
    changes = problem.partition("or train without: ")[2].replace("-s ", "").split()
    config = make_config({"data": {"train": "data.xyz"}}, changes)
    assert not label_needs(config.loss)[f"need_{label}"]


def test_frames_that_follow_each_other(bayrace, data, tmp_path):
    atoms = ase.io.read(data / "train.xyz", index=0)
    slow = []
    for step in range(100):
        each = atoms.copy()
        each.positions[1] += [0.005 * step, 0, 0]
        each.calc = SinglePointCalculator(each, energy=0.1 * step, forces=atoms.get_forces())
        slow.append(each)
    ase.io.write(tmp_path / "slow.xyz", slow, format="extxyz")
    assert "frames that follow each other" in bayrace("validate", tmp_path / "slow.xyz").stdout
    rare = bayrace("validate", data / "train.xyz").stdout
    assert "follow each other" not in rare


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
