"""Replays with training that is made up, so that every number of the table is known."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bayrace.config import ConfigError
from bayrace.config.active import Name, ReplayConfig
from bayrace.config.load import make_section
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import DataError
from bayrace.data.split import frame_hashes, geometry_fingerprint
from bayrace.select.acquire import ACQUISITIONS
from bayrace.workflow.replay import Plan, divide, replay, run_cell
from bayrace.workflow.replay_results import Cell, CellResult, SeedStatistics, relative, summary


@pytest.fixture(scope="module")
def potential(make_potential):
    """Two members with random weights."""
    return make_potential(seeds=(0, 1))


@pytest.fixture(scope="module")
def hot(potential):
    """30 frames whose labels differ from the predictions by 0.2 eV and 0.5 eV/Å."""
    frames = embedded_frames("ethanol-hot")[:30]
    predicted = potential.predict(frames)
    forces = predicted.forces.mean.reshape(30, -1, 3).numpy() + 0.5
    energies = predicted.energy.mean.numpy() - 0.2
    return [
        replace(frame, energy=float(e), forces=f)
        for frame, e, f in zip(frames, energies, forces, strict=True)
    ]


@pytest.fixture(scope="module")
def plan(hot):
    """Two pools of 15, of which 5 are for the test."""
    return Plan(
        acquisitions=("random", "bald-ef", "farthest"),
        budgets=(2, 4),
        seeds=(0, 1),
        pools={"a": hot[:15], "b": hot[15:]},
        tests={"cold": embedded_frames("ethanol-test")[:3]},
        train=embedded_frames("ethanol-train")[:5],
    )


class Tuner:
    """Trains nothing and remembers what it was given; may be interrupted."""

    def __init__(self, potential, most=999):
        self.potential, self.most, self.calls = potential, most, []

    def __call__(self, cell, picked):
        if len(self.calls) == self.most:
            return None
        self.calls.append((cell, list(picked)))
        return self.potential


def test_the_table_holds_what_is_known(potential, plan, tmp_path):
    tuner, heard = Tuner(potential), []
    results = replay(
        potential,
        plan,
        tune=tuner,
        folder=tmp_path,
        identity="x",
        observer=lambda cell, result, known: heard.append((cell.name, result is None, known)),
    )
    assert len(results) == len(plan.cells()) == 2 * (1 + 2 * 3)
    assert len(tuner.calls) == 12  # none for the start
    for result in results:
        for name in ("a", "b"):
            assert result.frames[name] == 5
            assert result.errors[name]["energy"]["rmse"] == pytest.approx(0.2)
            assert result.errors[name]["forces"]["mae"] == pytest.approx(0.5)
        assert result.frames["cold"] == 3
        assert {len(places) for places in result.chosen.values()} == {result.cell.budget}
    assert heard[:3] == [
        ("start-0-seed0", True, False),
        ("start-0-seed0", False, False),
        ("random-2-seed0", True, False),
    ]
    assert json.loads((tmp_path / "bald-ef-4-seed1.json").read_text())["members"] == 2


def test_nothing_that_is_learnt_from_is_tested_on(potential, plan):
    """Not even where the whole pool is the test set, or where a structure occurs twice."""
    twin = replace(plan.pools["a"][3], energy=1.0, forces=None)
    twice = replace(plan, pools={"a": [*plan.pools["a"], twin], "b": plan.pools["b"]}, holdout=0)
    learnt = replace(potential, frames={"train": frame_hashes(plan.pools["b"][:1])})
    tuner = Tuner(learnt)
    found = run_cell(learnt, twice, Cell("random", 14, 0), tune=tuner)
    assert len({geometry_fingerprint(frame) for frame in tuner.calls[0][1]}) == 28
    assert 0 not in found.chosen["b"]
    assert found.frames["b"] == 0  # 14 are chosen, one was learnt from
    twins = len(set(found.chosen["a"]) & {3, 15})
    assert twins == 1  # never both
    assert found.frames["a"] == 1  # 16 less 14 and the twin


def test_seeds_draw_the_test_sets_and_acquisitions_share_them(potential, plan, hot):
    parts = [divide(15, holdout=1 / 3, seed=seed, pool=0) for seed in (0, 0, 1)]
    assert parts[0].test == parts[1].test != parts[2].test
    for part in parts:
        assert sorted(part.test + part.candidates) == list(range(15))
    assert divide(15, holdout=1 / 3, seed=0, pool=1).test != parts[0].test
    for by in ("random", "bald-ef"):
        chosen = run_cell(potential, plan, Cell(by, 4, 0), tune=Tuner(potential)).chosen["a"]
        assert set(chosen) <= set(parts[0].candidates)


def test_a_replay_goes_on_where_it_ended(potential, plan, tmp_path):
    keywords = {"folder": tmp_path, "identity": "x"}
    first = replay(potential, plan, tune=Tuner(potential, most=4), **keywords)
    assert len(first) == 5
    (tmp_path / ".random-2-seed0.json.tmp").write_text("{")  # after kill -9
    rest = Tuner(potential)
    second = replay(potential, plan, tune=rest, **keywords)
    assert len(rest.calls) == 8
    assert [result.cell for result in second] == plan.cells()
    assert second[:5] == [
        replace(result, chosen={k: tuple(v) for k, v in result.chosen.items()}) for result in first
    ]
    more = replace(plan, seeds=(0, 1, 2), acquisitions=("random", "bald-ef"))
    added = Tuner(potential)
    assert len(replay(potential, more, tune=added, **keywords)) == 15
    assert len(added.calls) == 4  # the third seed
    stopped = replay(
        potential, replace(plan, seeds=(9,)), tune=added, stop=lambda: True, **keywords
    )
    assert stopped == []


def test_results_of_something_else_are_refused(potential, plan, tmp_path):
    replay(potential, plan, tune=Tuner(potential, most=1), folder=tmp_path, identity="x")
    tuner = Tuner(potential)
    with pytest.raises(DataError, match=r"other settings.*--overwrite"):
        replay(potential, plan, tune=tuner, folder=tmp_path, identity="y")
    assert tuner.calls == []
    (tmp_path / "start-0-seed0.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        replay(potential, plan, tune=tuner, folder=tmp_path, identity="x")


def test_a_budget_of_zero_is_a_control(potential, plan, tmp_path):
    control = replace(plan, budgets=(0, 2), seeds=(0,))
    names = [cell.name for cell in control.cells()]
    assert names[:3] == ["start-0-seed0", "none-0-seed0", "random-2-seed0"]
    tuner = Tuner(potential)
    replay(potential, control, tune=tuner, folder=tmp_path, identity="x")
    assert tuner.calls[0][1] == []


def test_pools_that_cannot_be_replayed(potential, plan, tmp_path):
    keywords = {"tune": Tuner(potential), "folder": tmp_path, "identity": "x"}
    with pytest.raises(DataError, match="a budget of 11 from 10 structures"):
        replay(potential, replace(plan, budgets=(11,)), **keywords)
    bare = [replace(frame, energy=None, forces=None) for frame in plan.pools["a"]]
    with pytest.raises(DataError, match="has no labels"):
        replay(potential, replace(plan, pools={"a": bare}), **keywords)
    with pytest.raises(DataError, match="lower the budget"):
        replay(potential, replace(plan, min_distance=9.0), **keywords)


def result(by, seed, forces, *, budget=5):
    errors = {"hot": {"forces": {"rmse": forces, "mae": 0.1}, "energy": {"rmse": 1.0, "mae": 1.0}}}
    return CellResult(Cell(by, budget, seed), {"hot": (1,)}, {"hot": 9}, errors, 2, 1.0)


def test_means_and_spreads_over_seeds():
    results = [
        result("start", 0, 9.0, budget=0),
        *(result("random", seed, value) for seed, value in enumerate((1.0, 2.0, 3.0))),
        *(result("bald-ef", seed, value) for seed, value in enumerate((0.8, 1.6, 2.4))),
    ]
    found = summary(results, "forces")["hot"]
    assert found["random", 5] == SeedStatistics(2.0, 1.0, 3)
    assert found["start", 0] == SeedStatistics(9.0, None, 1)
    pairs = relative(results, "forces")["hot"]
    assert pairs["bald-ef", 5].mean == pytest.approx(0.8)
    assert pairs["bald-ef", 5].std == pytest.approx(0.0, abs=1e-12)  # unlike the errors
    assert ("start", 0) not in pairs
    assert CellResult.from_json(json.loads(json.dumps(results[1].to_json()))) == results[1]


def test_the_configuration_names_every_acquisition_and_refuses_the_rest():
    assert set(Name.__args__) == set(ACQUISITIONS)
    raw = {"model": "m.bayrace", "pools": {"hot": "hot.xyz"}}
    config = make_section(ReplayConfig, raw, ["budgets=[3]", "tune.epochs=7"], source="r.yaml")
    assert (config.budgets, config.tune.epochs, config.pools) == ((3,), 7, {"hot": ("hot.xyz",)})
    wrong = {
        "budgett: [5]": {"budgett": [5]},
        "acquisitions.0": {"acquisitions": ["bald"]},
        "seeds": {"seeds": [1, 1]},
        "tune.epoch": {"tune": {"epoch": 3}},
        "pools": {"pools": None},
    }
    for change in wrong.values():
        with pytest.raises(ConfigError, match=rf"r.yaml:\n  .*{next(iter(change))[:5]}"):
            make_section(ReplayConfig, raw | change, source="r.yaml")


def test_chosen_structures_are_those_of_select(potential, plan):
    from bayrace.select.select import select

    cell = Cell("bald-ef", 4, 1)
    places = divide(15, holdout=1 / 3, seed=1, pool=0).candidates
    frames = [plan.pools["a"][place] for place in places]
    expected = select(potential, frames, by="bald-ef", budget=4, seen=plan.train, seed=1)
    found = run_cell(potential, plan, cell, tune=Tuner(potential)).chosen["a"]
    assert found == tuple(np.array(places)[expected.indices].tolist())
