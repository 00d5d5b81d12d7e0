"""Runs of an exploration as files: the same however they are spread, and never done twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayrace.config.loop import ExploreConfig
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import DataError
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings
from bayrace.simulate.explore import excursion
from bayrace.simulate.stop import StopRule
from bayrace.workflow.loop.runs import Exploration, explore_in_files, pool_of

Make = Callable[..., Potential]


@pytest.fixture(scope="module")
def model(make_potential: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.bayrace"
    make_potential(seeds=(0, 1)).save(path)
    return path


def explore(model: Path, folder: Path, **changes: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Two starts at two temperatures, six steps each; what is known, and what was told."""
    values = {
        "temperatures": (300.0, 600.0),
        "steps": 6,
        "every": 3,
        "uncertainty_every": 1,
        "rule": None,
        "workers": 1,
    }
    exploration = Exploration(
        model=str(model),
        folder=str(folder),
        starts=("first", "second"),
        config=ExploreConfig(**values | changes),
        seed=3,
    )
    told: list[Any] = []
    starts = embedded_frames("ethanol-test")[:2]
    return explore_in_files(exploration, starts, progress=told.append), told


def test_processes_do_what_one_would(model: Path, tmp_path: Path) -> None:
    alone, told = explore(model, tmp_path / "alone")
    assert told == alone
    assert [(run.start, run.temperature) for run in alone] == [
        (start, kelvin) for start in ("first", "second") for kelvin in (300.0, 600.0)
    ]
    assert [visit.step for visit in alone[0].visits] == [0, 3, 6]
    together, told = explore(model, tmp_path / "together", workers=2)
    assert sorted(map(repr, told)) == sorted(map(repr, together))
    assert together == alone
    pools = [pool_of(alone, tmp_path / name) for name in ("alone", "together")]
    assert len(pools[0]) == 12
    for one, other in zip(*pools, strict=True):
        np.testing.assert_array_equal(one.positions, other.positions)


def test_finished_runs_stay(model: Path, tmp_path: Path) -> None:
    before, _ = explore(model, tmp_path)
    (tmp_path / "run-002.json").unlink()
    old = (tmp_path / "run-001.traj").stat().st_mtime_ns
    after, _ = explore(model, tmp_path)
    assert after == before
    assert (tmp_path / "run-001.traj").stat().st_mtime_ns == old


def test_errors_of_processes_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"exploration failed: .*does not exist"):
        explore(tmp_path / "none.bayrace", tmp_path, workers=2)


def test_the_rule_waits_for_a_few_steps(model: Path) -> None:
    potential, start = Potential.load(model), embedded_frames("ethanol-test")[0]
    settings = DynamicsSettings("nvt", temperature=300.0, steps=6)
    rule = StopRule(1e-3, 0.5)  # broken from the beginning
    for least, steps in ((0, [0]), (5, [0, 3, 5])):
        run = excursion(potential, start, settings, rule=rule, every=3, min_steps=least)
        assert run.reason == "uncertain"
        assert [visit.frame.index for visit in run.visits] == steps
