"""Surface hopping and judging of states from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms, units
from ase.io import read, write
from typer.testing import CliRunner

from bayrace.cli.main import app
from bayrace.deploy.states import StateCalculator
from bayrace.potential.potential import Potential
from bayrace.potential.states import States

WATER = np.array([[0.0, 0.0, 0.0], [0.0, 0.8, 0.55], [0.0, -0.75, 0.6]])


@pytest.fixture(scope="module")
def folder(
    make_potential: Callable[..., Potential], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Two states 2 eV apart, starts with momenta, and labels that are the predictions."""
    place = tmp_path_factory.mktemp("states")
    base = {1: 0.0, 6: 0.0, 8: 0.0}
    for name, shift, seeds in (("s0", 0.0, (0, 1)), ("s1", 2.0, (2, 3)), ("square", 0.5, (4, 5))):
        potential = replace(make_potential(seeds=seeds), references=base | {8: shift})
        potential.save(place / f"{name}.bayrace")
    random = np.random.default_rng(0)
    starts = []
    for _ in range(6):
        atoms = Atoms("OH2", WATER + random.normal(scale=0.02, size=(3, 3)))
        atoms.set_velocities(random.normal(scale=0.01, size=(3, 3)) / units.fs)
        starts.append(atoms)
    write(place / "starts.xyz", starts, format="extxyz")
    return place


def invoke(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def hop(folder: Path, output: str, *more: object) -> str:
    files = [folder / "s0.bayrace", folder / "s1.bayrace"]
    common = ["--start", folder / "starts.xyz", "--trajectories", 6, "--time", 1, "--timestep", 0.1]
    return invoke("hop", *files, "-o", folder / output, *common, "--no-rule", *more)


def test_a_swarm_is_counted_and_continued(folder: Path) -> None:
    said = hop(folder, "swarm", "--group", 2, "--dihedral", "0,1,2,0", "--max-drift", 100)
    assert "6 trajectories" in said
    whole = json.loads((folder / "swarm" / "populations.json").read_text())
    np.testing.assert_allclose(np.sum(whole["share"], axis=1), 1.0)
    np.testing.assert_allclose(np.sum(whole["electronic_population"], axis=1), 1.0, atol=1e-10)
    assert whole["share"][0] == [0.0, 1.0]
    assert (folder / "swarm" / "populations.png").stat().st_size > 1000
    (folder / "swarm" / "trajectories-00002-00004.npz").unlink()  # as if it had been interrupted
    said = hop(folder, "swarm", "--group", 2, "--max-drift", 100)
    assert "2 of 3 groups" in said
    assert json.loads((folder / "swarm" / "populations.json").read_text()) == whole
    hop(folder, "other", "--group", 4, "--workers", 2, "--max-drift", 100)  # divided differently
    other = json.loads((folder / "other" / "populations.json").read_text())
    np.testing.assert_allclose(other["share"], whole["share"])
    files = [folder / "s0.bayrace", folder / "s1.bayrace"]
    words = ["hop", *files, "-o", folder / "swarm", "--start", folder / "starts.xyz"]
    words += ["--trajectories", "6", "--time", "2"]
    refused = CliRunner().invoke(app, [str(w) for w in words])
    assert refused.exit_code == 2
    assert "other settings" in refused.output


def test_the_rule_stops_what_it_cannot_trust(folder: Path) -> None:
    files = [folder / "s0.bayrace", folder / "s1.bayrace"]
    said = invoke(
        "hop", *files, "-o", folder / "ruled", "--start", folder / "starts.xyz",
        "--trajectories", 3, "--time", 1, "--max-force-error", 1e-6,
    )  # fmt: skip
    assert "3 stopped by the uncertainty rule (100 %)" in said


def test_states_are_judged_and_written(folder: Path) -> None:
    models = [folder / f"{name}.bayrace" for name in ("s0", "s1", "square")]
    words = ["--diabatic", "--data", folder / "starts.xyz", "-o", folder / "all.xyz"]
    invoke("states", *models, *words)
    written = read(folder / "all.xyz", ":")
    assert "coupling_01" in written[0].arrays
    said = invoke("states", *models, "--diabatic", "--data", folder / "all.xyz")
    assert "1.00000" in said  # R² of its own predictions
    states = States.load(models, diabatic=True)
    atoms = Atoms("OH2", written[0].positions)
    for state in (0, 1):
        atoms.calc = StateCalculator(states, state=state)
        assert atoms.get_potential_energy() == pytest.approx(
            written[0].info[f"energy_{state}"], abs=1e-6
        )
        np.testing.assert_allclose(
            atoms.get_forces(), written[0].arrays[f"forces_{state}"], atol=1e-6
        )
        assert atoms.calc.results["forces_covariance"].shape == (3, 3, 3)


def test_a_state_that_is_not_there(folder: Path) -> None:
    files = [str(folder / "s0.bayrace"), str(folder / "s1.bayrace")]
    words = ["hop", *files, "-o", str(folder / "x"), "--start", "a.xyz", "--state", "5"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert "there are 2 states" in refused.output
