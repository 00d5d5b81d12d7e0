"""predict, evaluate and select with several processes, and on a real dask cluster."""

from __future__ import annotations

import json

import ase.io
import numpy as np
import pytest

pytest.importorskip("distributed")


def test_predict_with_two_workers(bayrace, model, data, tmp_path):
    for name, workers in (("one", 1), ("two", 2)):
        target = tmp_path / f"{name}.xyz"
        result = bayrace("predict", model, data / "hot.xyz", "-o", target, "--workers", workers)
        assert result.exit_code == 0, result.output
        assert f"4 structures: {target}" in result.stdout
    one, two = (ase.io.read(tmp_path / f"{name}.xyz", ":") for name in ("one", "two"))
    for here, there in zip(one, two, strict=True):
        np.testing.assert_allclose(there.get_forces(), here.get_forces(), rtol=1e-4, atol=1e-5)
        name = "forces_uncertainty"
        np.testing.assert_allclose(there.arrays[name], here.arrays[name], rtol=1e-4)


def test_evaluate_and_select_on_a_real_cluster(bayrace, model, data, tmp_path, scheduler):
    found = []
    for place, where in enumerate(((), ("--scheduler", scheduler))):
        numbers, chosen = tmp_path / f"{place}.json", tmp_path / f"{place}.xyz"
        shared = ("-m", model, "-n", 2, "--by", "variance", "-o", chosen)
        for command in (
            ("evaluate", model, data / "hot.xyz", "--json", numbers, *where),
            ("select", data / "hot.xyz", *shared, *where),
        ):
            result = bayrace(*command)
            assert result.exit_code == 0, result.output
        sets = json.loads(numbers.read_text("utf-8"))["sets"]["hot.xyz"]
        places = [atoms.positions for atoms in ase.io.read(chosen, ":")]
        found.append((sets["forces"]["mae"], np.array(places)))
    (here, ours), (there, theirs) = found
    assert there == pytest.approx(here, rel=1e-5)
    np.testing.assert_allclose(theirs, ours)


def test_nobody_at_the_address(bayrace, model, data):
    result = bayrace("evaluate", model, data / "hot.xyz", "--scheduler", "nowhere")
    assert result.exit_code == 2
    assert "no dask scheduler answers" in result.stderr
