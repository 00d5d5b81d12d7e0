"""`bayrace replay` from beginning to end, with one network and two epochs."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def config(data, model, tmp_path):
    """A replay of two acquisitions."""
    path = tmp_path / "replay.yaml"
    path.write_text(
        f"model: {model}\noutput: {tmp_path}/replay\npools: {{hot: {data}/hot.xyz}}\n"
        f"tests: {{cold: {data}/test.xyz}}\nacquisitions: [random, variance]\nbudgets: [0, 1]\n"
        "seeds: [0, 1]\nholdout: 0.5\ntune: {epochs: 4, lr: 0.01}\n",
        encoding="utf-8",
    )
    return path


def test_tables_numbers_and_a_second_call(bayrace, config, tmp_path):
    first = bayrace("replay", config, "-o", "seeds=[0]")
    assert first.exit_code == 0, first.output
    assert "hot: RMSE of energy, meV / forces, meV/Å; 2 test structures" in first.stdout
    second = bayrace("replay", config)
    assert second.exit_code == 0, second.output
    assert second.stdout.count("(found)") == 4
    for row in ("as it was", "trained on, nothing new", "random", "variance", "±", "1.000"):
        assert row in second.stdout
    content = json.loads((tmp_path / "replay" / "results.json").read_text())
    assert len(content["cells"]) == 8
    errors = content["rmse"]["forces"]["hot"]
    assert set(errors) == {"start +0", "none +0", "random +1", "variance +1"}
    assert errors["random +1"]["count"] == 2
    cold = content["rmse"]["forces"]["cold"]
    assert cold["none +0"]["mean"] < cold["start +0"]["mean"]  # which had two epochs only
    assert content["config"]["tune"]["epochs"] == 4
    assert not list((tmp_path / "replay" / "work").iterdir())


def test_other_settings_are_another_replay(bayrace, config, tmp_path):
    few = ("-o", "seeds=[0]", "-o", "budgets=[1]", "-o", "acquisitions=[random]")
    assert bayrace("replay", config, *few).exit_code == 0
    changed = bayrace("replay", config, *few, "-o", "tune.epochs=1")
    assert changed.exit_code == 2
    assert "--overwrite" in changed.output
    again = bayrace("replay", config, *few, "-o", "tune.epochs=1", "-o", "keep=true", "--overwrite")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "replay" / "work" / "random-1-seed0" / "run" / "model.bayrace").is_file()


def test_wrong_keys_are_named(bayrace, config):
    result = bayrace("replay", config, "-o", "acquisition=[random]")
    assert result.exit_code == 2
    assert "did you mean acquisitions?" in result.output
