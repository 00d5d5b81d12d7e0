from __future__ import annotations

import json

import pytest
import torch

from bayrace.evaluate.metrics.unified import unified_score
from bayrace.models.noise import NO_NOISE


@pytest.fixture(scope="module")
def models(tmp_path_factory, make_potential):
    """A point model without noise, an ensemble of four without, and one with."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        "point": make_potential(noise=NO_NOISE, dtype=torch.float32),
        "ensemble": make_potential(noise=NO_NOISE, seeds=range(4), dtype=torch.float32),
        "noisy": make_potential(seeds=range(8), dtype=torch.float32),
    }
    for name, potential in made.items():
        potential.save(folder / f"{name}.bayrace")
    return [folder / f"{name}.bayrace" for name in made]


@pytest.fixture(scope="module")
def compared(bayrace, models, data, tmp_path_factory):
    target = tmp_path_factory.mktemp("compared") / "numbers.json"
    sets = ("--id", data / "test.xyz", "--ood", data / "hot.xyz")
    result = bayrace("compare", *models, *sets, "--json", target, "--rounds", 3)
    assert result.exit_code == 0, result.output
    text = target.read_text()
    assert "NaN" not in text
    return json.loads(text)["models"], result.stdout


def test_every_model_has_a_row(compared):
    found, text = compared
    assert list(found) == ["point", "ensemble", "noisy"]
    for name, each in found.items():
        errors, worth = (line for line in text.splitlines() if line.startswith(f" {name} "))
        assert f"{1000 * each['known']['forces']['rmse']:.1f}" in errors
        assert f"{1000 * each['unknown']['energy']['rmse']:.1f}" in errors
        assert f"{each['cost']['time']:.2f}×" in worth
        if name == "point":
            assert errors.count("–") == 4  # calibration errors
            assert worth.count("–") == 6  # AUROC, novelty and score
        else:
            error = each["unknown"]["uncertainty"]["forces"]["calibration_error"]
            assert f"{error:.4f}" in errors
            assert f"{each['detection']['energy_total']['auroc']:.3f}" in worth


def test_the_score_is_that_of_its_formula(compared):
    each = compared[0]["noisy"]
    known = each["known"]
    expected = unified_score(
        energy_rmse=known["energy"]["rmse"],
        forces_rmse=known["forces"]["rmse"],
        energy_ce=known["uncertainty"]["energy"]["calibration_error"],
        forces_ce=known["uncertainty"]["forces"]["calibration_error"],
        auroc=each["detection"]["energy_total"]["auroc"],
    )
    assert each["unified"]["raw"] == pytest.approx(expected)
    assert compared[0]["point"]["unified"] == {"raw": None, "normalised": None}


def test_normalised_scores_use_the_pool_of_models(bayrace, models, data, compared, tmp_path):
    found = compared[0]
    errors = {
        quantity: {
            name: found[name]["known"]["uncertainty"][quantity]["calibration_error"]
            for name in ("ensemble", "noisy")
        }
        for quantity in ("energy", "forces")
    }
    for name in ("ensemble", "noisy"):
        moved = [0.0 if pool[name] == min(pool.values()) else 1.0 for pool in errors.values()]
        raw = [pool[name] for pool in errors.values()]
        change = found[name]["unified"]["normalised"] - found[name]["unified"]["raw"]
        assert change == pytest.approx(0.125 * (sum(moved) - sum(raw)))
    result = bayrace("compare", *models, "--id", data / "test.xyz", "--normalise", "--rounds", 1)
    assert "CE normalised over these models" in result.stdout


def test_cost_is_relative_to_the_first(compared):
    costs = {name: each["cost"] for name, each in compared[0].items()}
    assert costs["point"]["time"] == 1.0
    assert costs["point"]["memory_ratio"] == 1.0
    assert costs["noisy"]["time"] > 1.5  # eight members, and noise
    assert costs["point"]["memory"] < costs["ensemble"]["memory"] < costs["noisy"]["memory"]


def test_the_score_may_take_another_auroc(bayrace, models, data, compared, tmp_path):
    sets = ("--id", data / "test.xyz", "--ood", data / "hot.xyz", "--rounds", 1)
    target = tmp_path / "numbers.json"
    chosen = ("--score", "energy_epistemic", "--json", target)
    result = bayrace("compare", models[2], *sets, *chosen)
    assert result.exit_code == 0, result.output
    assert "AUROC of energy_epistemic" in result.stdout
    found, before = json.loads(target.read_text())["models"]["noisy"], compared[0]["noisy"]
    aurocs = [before["detection"][name]["auroc"] for name in ("energy_total", "energy_epistemic")]
    expected = before["unified"]["raw"] + 0.25 * (aurocs[0] - aurocs[1])
    assert found["unified"]["raw"] == pytest.approx(expected, abs=1e-5)


def test_without_unknown_structures(bayrace, models, data):
    result = bayrace("compare", *models[1:], "--id", data / "test.xyz", "--rounds", 1)
    assert result.exit_code == 0, result.output
    assert "known: 4 structures;" in result.stdout


def test_equal_names_are_told_apart(bayrace, models, data, tmp_path):
    twin = tmp_path / "elsewhere" / "point.bayrace"
    twin.parent.mkdir()
    twin.write_bytes(models[0].read_bytes())
    result = bayrace("compare", models[0], twin, "--id", data / "test.xyz", "--rounds", 1)
    assert result.exit_code == 0, result.output
    assert "elsewhere/point" in result.stdout
    refused = bayrace("compare", models[0], models[0], "--id", data / "test.xyz")
    assert refused.exit_code == 2
    assert "is given twice" in refused.stderr
