"""`bayrace select` on a few structures of ethanol."""

from __future__ import annotations

import ase.io
import pytest

from bayrace.data.read import iterate_atoms


def test_chosen_frames_carry_why(bayrace, data, model, tmp_path):
    chosen = tmp_path / "deep" / "chosen.xyz"
    result = bayrace(
        "select",
        *(data / "hot.xyz", data / "train.xyz"),
        *("--model", model, "--by", "variance", "--budget", 3, "-o", chosen),
    )
    assert result.exit_code == 0, result.output
    atoms = ase.io.read(chosen, ":")
    assert [each.info["selection_rank"] for each in atoms] == [1, 2, 3]
    assert [each.info["selection_by"] for each in atoms] == [
        "variance-force",
        "variance-energy",
        "variance-force",
    ]
    assert all(each.info["selection_score"] > 0 for each in atoms)
    assert all(each.info["selection_distance"] > 0.02 for each in atoms)
    assert all(each.calc.results["forces"].shape == (9, 3) for each in atoms)
    assert {each.info["config_type"] for each in atoms} == {"1000K"}  # the rest was learnt from
    assert "learnt from: 12" in result.stdout
    assert "3 of them belong to the test set" in result.stdout
    for row in ("hot.xyz, ", "variance-energy", "place in pool", "nearest, Å"):
        assert row in result.stdout


def test_a_pool_that_is_used_up(bayrace, data, model, tmp_path):
    arguments = ("--model", model, "--by", "random", "-o", tmp_path / "c.xyz")
    result = bayrace("select", data / "hot.xyz", "--budget", 9, *arguments)
    assert result.exit_code == 0, result.output
    assert "only 4 of 9" in result.stdout
    assert len(ase.io.read(tmp_path / "c.xyz", ":")) == 4
    seen = bayrace(
        *("select", data / "hot.xyz", "--budget", 9, *arguments, "--overwrite"),
        *("--seen", f"{data}/hot.xyz@:3"),
    )
    assert "like a training structure: 3" in seen.stdout
    assert len(ase.io.read(tmp_path / "c.xyz", ":")) == 1


def test_structures_without_labels(bayrace, data, model, tmp_path):
    bare = [atoms for *_, atoms in iterate_atoms(data / "hot.xyz")]
    for atoms in bare:
        atoms.calc = None
    ase.io.write(tmp_path / "bare.xyz", bare, format="extxyz")
    result = bayrace(
        "select",
        tmp_path / "bare.xyz",
        *("-m", model, "--by", "farthest", "-n", 2, "-o", tmp_path / "c.xyz"),
    )
    assert result.exit_code == 0, result.output
    assert all(atoms.calc is None for atoms in ase.io.read(tmp_path / "c.xyz", ":"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--by", "bald"), "bald-ef"),
        (("--by", "bald-ef"), "train an ensemble"),
        (("--budget", "0"), "1"),
    ],
)
def test_errors(bayrace, data, model, tmp_path, arguments, message):
    result = bayrace(
        "select",
        data / "hot.xyz",
        *("--model", model, "--budget", 2, "-o", tmp_path / "c.xyz", *arguments),
    )
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "c.xyz").exists()


def test_the_pool_is_not_overwritten(bayrace, data, model):
    pool = data / "hot.xyz"
    result = bayrace("select", pool, "--model", model, "--budget", 2, "-o", pool)
    assert result.exit_code == 2
    assert "is also an input" in result.output


def test_output_has_a_default(bayrace, data, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = bayrace("select", data / "hot.xyz", "--model", model, "--by", "random", "--budget", 2)
    assert result.exit_code == 0, result.output
    assert len(ase.io.read(tmp_path / "chosen.xyz", ":")) == 2


def test_nothing_left_is_an_error(bayrace, data, model, tmp_path):
    chosen = tmp_path / "c.xyz"
    arguments = ("-m", model, "--by", "random", "-n", 2, "-o", chosen)
    refused = bayrace("select", data / "hot.xyz", *arguments, "--seen", data / "hot.xyz")
    assert refused.exit_code == 2
    assert "none of the 4 structures can be chosen (like a training structure: 4)" in refused.stderr
    assert "--min-distance" in refused.stderr
    assert not chosen.exists()


def test_an_earlier_choice_is_kept(bayrace, data, model, tmp_path):
    chosen = tmp_path / "c.xyz"
    chosen.write_text("mine")
    arguments = ("select", data / "hot.xyz", "-m", model, "--by", "random", "-n", 2, "-o", chosen)
    refused = bayrace(*arguments)
    assert refused.exit_code == 2
    assert "exists; replace it with --overwrite" in refused.stderr
    assert chosen.read_text() == "mine"
    assert bayrace(*arguments, "--overwrite").exit_code == 0
