"""Whole loops on a cluster of four copper atoms, whose oracle counts its calls."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from ase.calculators.emt import EMT
from typer.testing import CliRunner

pytest.importorskip("distributed")

from bayrace.cli.main import app
from bayrace.config.load import ConfigError, make_section
from bayrace.config.loop import LoopConfig, StopConfig
from bayrace.config.renamed import old_names
from bayrace.data.embedded import embedded
from bayrace.data.frame import DataError
from bayrace.label.store import LabelStore
from bayrace.potential.potential import Potential
from bayrace.report.round import Round, RunSummary
from bayrace.workflow.folder import locked
from bayrace.workflow.loop.observer import LoopObserver
from bayrace.workflow.loop.rounds import Ended, certain, enough, nothing_chosen, run_loop
from bayrace.workflow.loop.state import State
from bayrace.workflow.loop.steps import Chosen, Explored, Labelled, Scored, Step, Trained

COUNTING = Path(__file__).parents[2] / "label" / "counting.py"
STEPS = ["explore", "select", "label", "train", "evaluate"]
Settings = Callable[..., dict[str, Any]]
RUN = RunSummary("a", 300.0, 0, "uncertain", "", 5, 10.0, 0.1, None, uncertain=True, visits=1)


def cluster(seed: int, *, amount: float) -> Atoms:
    """A rattled tetrahedron with EMT's energy and forces."""
    side = 2.4 / np.sqrt(8)
    corners = side * np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    atoms = Atoms("Cu4", positions=corners)
    atoms.rattle(amount, seed=seed)
    atoms.calc = EMT()
    atoms.get_forces()
    return atoms


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with twelve structures to start from, and eight wilder ones to be tested on."""
    folder = tmp_path_factory.mktemp("copper")
    ase.io.write(folder / "start.xyz", [cluster(n, amount=0.05) for n in range(12)])
    ase.io.write(folder / "hot.xyz", [cluster(n + 50, amount=0.15) for n in range(8)])
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the oracle counts."""
    return tmp_path / "oracle.log"


@pytest.fixture
def settings(data: Path, log: Path, tmp_path: Path) -> Settings:
    """A loop of seconds: one network that predicts noise, two rounds of four labels."""

    def make(*, oracle: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        arguments = {"log": str(log), **(oracle or {})}
        raw: dict[str, Any] = {
            "output": str(tmp_path / "loop"),
            "data": {"train": str(data / "start.xyz"), "valid": 3},
            "model": {"preset": "tiny", "cutoff": 4.0},
            "loss": {"refit_epochs": 1},
            "train": {"max_epochs": 5, "batch_size": 3, "device": "cpu"},
            "posterior": "point",
            "test": {"hot": str(data / "hot.xyz")},
            "explore": {
                "temperatures": [300, 900],
                "structures": 2,
                "steps": 30,
                "every": 10,
                "workers": 1,
                "rule": {"max_force_error": 0.05, "probability": 0.01},
            },
            "select": {"by": "variance", "budget": 4, "valid": 0.25, "min_distance": 0.001},
            "oracle": {
                "kind": "ase",
                "ase": {"calculator": f"{COUNTING}:Counting", "arguments": arguments},
            },
            "tune": {"epochs": 3},
            "stop": {"rounds": 2},
        }
        for name, value in changes.items():
            both = isinstance(raw.get(name), dict) and isinstance(value, dict)
            raw[name] = raw[name] | value if both else value
        return raw

    return make


def run(raw: dict[str, Any], **options: Any) -> Ended:
    return run_loop(make_section(LoopConfig, raw, source="test"), **options)


def lines(log: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in log.read_text("utf-8").splitlines())


class Heard(LoopObserver):
    """Remembers which steps were done and which were found."""

    def __init__(self) -> None:
        self.done: list[tuple[int, str]] = []
        self.found: list[tuple[int, str]] = []

    def ends(self, number: int, result: Step, seconds: float | None) -> None:
        (self.found if seconds is None else self.done).append((number, result.name))


def test_two_rounds(settings: Settings, log: Path, tmp_path: Path) -> None:
    watch, folder = Heard(), tmp_path / "loop"
    ended = run(settings(), watch=watch)
    assert ended.reason == "2 rounds are done"
    first = [(0, "train"), (0, "evaluate")]
    assert watch.done == first + [(n, step) for n in (1, 2) for step in STEPS]
    assert [each.labels for each in ended.rounds] == [0, 4, 8]
    assert [(each.train, each.valid) for each in ended.rounds] == [(9, 3), (12, 4), (15, 5)]
    assert lines(log) == {"start": 8, "end": 8}
    potential = Potential.load(ended.model)
    assert potential.calibration is not None
    assert potential.calibration.frames == 5
    assert len(potential.frames["train"]) == 15
    for each in ended.rounds[1:]:
        assert len(each.runs) == 4
        assert each.calls == 4 * each.number
        assert {pick.use for pick in each.chosen} == {"training", "validation"}
        assert {pick.by for pick in each.chosen} == {"variance-force", "variance-energy"}
        assert each.chosen[0].forces_rmse > 0
    content = json.loads((folder / "rounds.json").read_text("utf-8"))
    assert content["reason"] == ended.reason
    assert [each["labels"] for each in content["rounds"]] == [0, 4, 8]
    page = (folder / "report.html").read_text("utf-8")
    for text in ("2 rounds are done", "learning-forces", "variance-force", "Largest force σ"):
        assert text in page
    again = Heard()
    assert run(settings(), watch=again).rounds == ended.rounds
    assert again.done == []
    more = run(settings(stop={"rounds": 3}), watch=again)  # of the stop alone may be changed
    assert again.done == [(3, step) for step in STEPS]
    assert more.rounds[:3] == ended.rounds
    with pytest.raises(DataError, match="other settings of select, tune"):
        run(settings(tune={"epochs": 4}, select={"budget": 5}))
    fresh = run(settings(tune={"epochs": 4}, stop={"rounds": 0}), overwrite=True)
    assert [each.number for each in fresh.rounds] == [0]


def test_two_loops_end_with_the_same_bits(settings: Settings, tmp_path: Path) -> None:
    """With the posterior of a training without options, in different folders."""
    found = []
    for name in ("one", "other"):
        raw = settings(output=str(tmp_path / name), posterior="distance", stop={"rounds": 1})
        assert run(raw).rounds[-1].labels == 4
        found.append(Potential.load(tmp_path / name / "model.bayrace"))
    one, other = (potential.posterior.tensors() for potential in found)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert found[0].posterior.options() == found[1].posterior.options()
    assert found[0].calibration == found[1].calibration


def test_labels_reach_the_training_as_they_are(settings: Settings, tmp_path: Path) -> None:
    ended = run(settings(stop={"rounds": 1}))
    labelled = ase.io.read(tmp_path / "loop" / "round-01" / "labelled.traj", ":")
    assert len(labelled) == ended.rounds[-1].labels == 4
    for atoms in labelled:
        stored = atoms.get_forces()
        atoms.calc = EMT()
        np.testing.assert_array_equal(stored, atoms.get_forces())


def test_exploration_goes_on_from_labels(settings: Settings, tmp_path: Path) -> None:
    ended = run(settings(explore={"restart_fraction": 0.5}))
    assert all(start.startswith("round-00/train.traj") for start in starts(ended.rounds[1]))
    given, new = starts(ended.rounds[2])
    assert given.startswith("round-00/train.traj")
    assert new.startswith("round-01/labelled.traj, frame ")
    place = int(new.rpartition(" ")[2])
    label = ase.io.read(tmp_path / "loop" / "round-01" / "labelled.traj", place)
    begun = ase.io.read(tmp_path / "loop" / "round-02" / "explore" / "starts.traj", 1)
    np.testing.assert_array_equal(begun.positions, label.positions)


def test_a_loop_begun_before_a_setting_existed_goes_on(settings: Settings, tmp_path: Path) -> None:
    raw = settings(stop={"rounds": 0})
    run(raw)
    with closing(sqlite3.connect(tmp_path / "loop" / "loop.sqlite")) as connection, connection:
        known = json.loads(connection.execute("SELECT content FROM loop_settings").fetchone()[0])
        del known["explore"]["restart_fraction"]
        connection.execute("UPDATE loop_settings SET content = ?", (json.dumps(known),))
    assert run(raw).reason == "0 rounds are done"
    with pytest.raises(DataError, match="other settings of explore;"):
        run(settings(explore={"restart_fraction": 0.5}))


def test_a_loop_begun_under_old_names_goes_on(settings: Settings, tmp_path: Path) -> None:
    raw = settings(stop={"rounds": 0})
    run(raw)
    with closing(sqlite3.connect(tmp_path / "loop" / "loop.sqlite")) as connection, connection:
        known = json.loads(connection.execute("SELECT content FROM loop_settings").fetchone()[0])
        earlier = old_names(known)
        assert {"bound", "over"} <= earlier["explore"]["rule"].keys()
        connection.execute("UPDATE loop_settings SET content = ?", (json.dumps(earlier),))
    assert run(raw).reason == "0 rounds are done"
    assert run(old_names(raw)).reason == "0 rounds are done"
    with pytest.raises(DataError, match="other settings of explore;"):
        run(settings(explore={"min_steps": 3}))


def starts(finished: Round) -> list[str]:
    """What the runs of a round began from."""
    return list(dict.fromkeys(each.start for each in finished.runs))


def test_an_existing_potential_and_random_choice(settings: Settings, tmp_path: Path) -> None:
    first = run(settings(stop={"rounds": 0}))
    raw = settings(output=str(tmp_path / "second"), select={"by": "random"})
    for name in ("data", "model", "loss", "train", "posterior"):
        del raw[name]
    ended = run(raw | {"potential": str(first.model), "stop": {"rounds": 1}})
    assert ended.rounds[0].errors == first.rounds[0].errors
    assert ended.rounds[1].labels == 4
    assert {pick.by for pick in ended.rounds[1].chosen} == {"random"}
    with pytest.raises(ConfigError, match=r"train.*of no use with potential"):
        run(settings(potential=str(first.model)))


def test_failing_calls_do_not_end_it(settings: Settings, log: Path) -> None:
    ended = run(settings(oracle={"failing": 0.3}, label={"retries": 0}))
    last = ended.rounds[-1]
    failed = sum(each.failed for each in ended.rounds)
    assert failed == 3  # of calls 0 to 7 those with 7·n mod 10 below 3
    assert last.labels == 8 - failed
    assert lines(log) == {"start": 8, "end": 5}
    assert last.train + last.valid == 12 + last.labels


def test_an_oracle_that_always_fails_ends_it(settings: Settings, log: Path) -> None:
    raw = settings(oracle={"failing": 1.0}, label={"retries": 1})
    for _ in range(2):  # the second time nothing is tried again
        with pytest.raises(DataError, match=r"none of the structures of round 1.*no conv"):
            run(raw)
        assert lines(log) == {"start": 8}


def test_a_round_without_labels_is_bad_luck(settings: Settings, log: Path) -> None:
    """Calls 0, 3 and 6 of every ten fail: the first of round 1, and the only one of round 2."""
    raw = settings(oracle={"failing": 0.3}, label={"retries": 0}, select={"budget": 3})
    raw["stop"] = {"rounds": 3, "labels": 3}
    ended = run(raw)
    assert [(each.labels, each.failed) for each in ended.rounds] == [(0, 0), (2, 1), (2, 1), (3, 0)]
    assert ended.rounds[2].errors == ended.rounds[1].errors
    assert ended.rounds[2].newest is None
    assert ended.reason == "the budget of 3 labels is spent"


def test_folders_of_something_else_are_left_alone(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "model.bayrace").write_text("mine", "utf-8")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"holds other files \(model.bayrace\) and no loop"):
            run(settings(), overwrite=overwrite)
    assert (tmp_path / "loop" / "model.bayrace").read_text("utf-8") == "mine"


class TestStop:
    """Each criterion, on rounds that are made up."""

    @staticmethod
    def made(number: int, **values: Any) -> Round:
        errors = {"hot": {"forces_rmse": 0.3}, "cold": {"forces_rmse": 0.1}}
        base = Round(number, 10 * number, 0, 0, 20, 4, errors, {"forces_rmse": 0.5})
        return replace(base, **values)

    @pytest.mark.parametrize(
        ("stop", "reason"),
        [
            ({"rounds": 3}, "3 rounds are done"),
            ({"rounds": 4}, None),
            ({"labels": 30}, "the budget of 30 labels is spent"),
            ({"labels": 31}, None),
            ({"error": 0.3}, "the force RMSE is 300 meV/Å, 300 were asked for"),
            ({"error": 0.29}, None),  # cold alone would do
        ],
    )
    def test_after_a_round(self, stop: dict[str, Any], reason: str | None) -> None:
        config = StopConfig(**{"rounds": None} | stop)
        assert enough([self.made(0), self.made(3)], config) == reason

    def test_newest_labels_where_there_is_no_test(self) -> None:
        untested = self.made(1, errors={})
        assert enough([untested], StopConfig(error=0.5)) is not None
        assert enough([untested], StopConfig(error=0.4)) is None
        assert enough([replace(untested, newest=None)], StopConfig(error=9.0)) is None

    def test_after_an_exploration(self) -> None:
        runs = [replace(RUN, uncertain=number == 0) for number in range(4)]
        assert certain(runs, StopConfig()) is None
        assert certain(runs[1:], StopConfig()) is not None
        assert "only 1 of 4" in str(certain(runs, StopConfig(uncertain=0.25)))
        assert certain(runs[1:], StopConfig(uncertain=None)) is None


def test_the_budget_is_kept_to_the_label(settings: Settings, log: Path) -> None:
    ended = run(settings(stop={"labels": 6, "rounds": None}))
    assert ended.reason == "the budget of 6 labels is spent"
    assert [each.labels for each in ended.rounds] == [0, 4, 6]
    assert lines(log)["start"] == 6


def test_certain_exploration_ends_it(settings: Settings, log: Path) -> None:
    ended = run(settings(explore={"rule": {"max_force_error": 50.0, "probability": 0.9}}))
    assert ended.reason == "exploration is certain: none of 4 runs met an uncertain structure"
    assert [each.number for each in ended.rounds] == [0, 1]
    assert {each.reason for each in ended.rounds[1].runs} == {"finished"}
    assert not log.exists()
    assert Potential.load(ended.model).fingerprint


def test_one_loop_in_a_folder(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(DataError, match="another process works in it"),
        locked(tmp_path),
    ):
        pass


def test_steps_stay_in_order_when_the_clock_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, clock = State(tmp_path / "s.sqlite"), iter((3e9, 2e9, 1e9, 4e9, 5e8))
    monkeypatch.setattr(time, "time", lambda: next(clock))
    results = (Explored(()), Chosen(), Labelled((), (), None, (), 0), Trained(1, 1), Scored({}))
    for result in results:
        state.record(1, result, seconds=0.0)
    assert list(state.seconds(1)) == STEPS


AHEAD: dict[str, tuple[dict[str, Any], str]] = {
    "test": ({"test": {"other": str(embedded("ethanol-test"))}}, "C"),
    "starts": ({"explore": {"starts": str(embedded("ethanol-test"))}}, "C"),
    "calculator": ({"oracle": {"kind": "ase", "ase": {"calculator": "nowhere:X"}}}, "nowhere"),
    "teacher": ({"oracle": {"kind": "teacher", "teacher": {"model": "no.bayrace"}}}, "no.bayrace"),
    "files": (
        {
            "oracle": {
                "kind": "command",
                "command": {"command": "x", "input": "a", "output": "b", "files": ["INCAR"]},
            }
        },
        "INCAR",
    ),
}


@pytest.mark.parametrize("name", AHEAD)
def test_what_is_needed_later_is_looked_at_first(
    settings: Settings, tmp_path: Path, name: str
) -> None:
    change, message = AHEAD[name]
    raw = settings()
    for key, value in change.items():
        raw[key] = value if key == "oracle" else raw[key] | value
    with pytest.raises(ValueError, match=message):
        run(raw)
    assert not (tmp_path / "loop" / "round-00").exists()  # nothing was trained


def test_a_mistake_that_was_corrected_is_forgotten(settings: Settings) -> None:
    """The folder had kept the settings that were refused, and refused the right ones."""
    wrong = {"kind": "ase", "ase": {"calculator": "emt"}}
    with pytest.raises(ValueError, match="emt"):
        run(settings() | {"oracle": wrong})
    assert run(settings(stop={"rounds": 0})).rounds[-1].labels == 0


def test_a_step_is_done_once(tmp_path: Path) -> None:
    state, done = State(tmp_path / "s.sqlite"), []
    for _ in range(2):
        result, _ = state.once(1, Trained, lambda: done.append(1) or Trained(3, 2))
        assert result == Trained(3, 2)
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        state.once(1, Scored, lambda: 1 / 0)
    assert state.result(1, Scored) is None


EARLIER = {  # as loops of 0.1 recorded them; "apart" came later, and so may other keys
    Explored: {
        "runs": [
            {"start": "a.xyz, frame 0", "temperature": 300.0, "seed": 7}
            | {"reason": "uncertain", "message": "step 5: ...", "steps": 5, "time": 2.5}
            | {"forces_std": 0.4, "risk": None, "uncertain": True, "visits": 3, "gone": 1}
        ]
    },
    Chosen: {
        "chosen": [
            {"why": "w", "by": "bald-ef", "score": 1.5, "start": "a.xyz, frame 0"}
            | {"temperature": 300.0, "step": 5, "time": 2.5, "forces_std": 0.4, "risk": 0.2}
        ],
        "skipped": {"copies": 2},
        "pool": 9,
    },
    Labelled: {
        "uses": ["training", "failed"],
        "failures": ["no"],
        "newest": {"forces_rmse": 0.1},
        "forces_rmse": [0.1, None],
        "calls": 3,
    },
    Trained: {"train": 20, "valid": 4},
    Scored: {"hot": {"forces_rmse": 0.3, "energy_rmse": None}},
}


@pytest.mark.parametrize("step", EARLIER, ids=lambda step: step.name)
def test_steps_of_earlier_loops_are_read(step: type[Step], tmp_path: Path) -> None:
    state, content = State(tmp_path / "s.sqlite"), EARLIER[step]
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as connection, connection:
        row = (1, step.name, json.dumps(content), 0.0, 1.0)
        connection.execute("INSERT INTO loop_steps VALUES (?, ?, ?, ?, ?)", row)
    found = state.result(1, step)
    assert isinstance(found, step)
    state.record(2, found, seconds=0.0)
    assert state.result(2, step) == found
    written, told = found.to_json(), json.loads(json.dumps(content).replace(', "gone": 1', ""))
    kept = {name: written[name] for name in told}
    if step is Chosen:
        kept["chosen"] = [
            {k: v for k, v in pick.items() if v not in ("", None)} for pick in kept["chosen"]
        ]
    assert json.loads(json.dumps(kept)) == told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"explore": {"temperature": [300]}}, r"explore.temperature.*temperatures"),
        ({"select": {"by": "bold"}}, "select.by"),
        ({"rounds": 3}, "rounds"),
        ({"explore": {"every": 12}}, "no multiple of uncertainty_every 5"),
        ({"stop": {"rounds": None}}, "or it may never end"),
        ({"data": None}, "give data.train, or a potential"),
        ({"select": {"by": "bald-ef"}}, "posterior point has but one"),
        ({"loss": {"kind": "mse"}}, "predicts no uncertainty"),
    ],
)
def test_wrong_settings_are_refused(
    settings: Settings, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_section(LoopConfig, settings(**change), source="test")


def recorded(folder: Path) -> int:
    """Steps that a loop has done."""
    try:
        with closing(sqlite3.connect(folder / "loop.sqlite", timeout=10)) as connection:
            return int(connection.execute("SELECT count(*) FROM loop_steps").fetchone()[0])
    except sqlite3.OperationalError:  # there is nothing yet
        return 0


def start(file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bayrace.cli.main", "active", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def moments(log: Path, folder: Path) -> tuple[int, int]:
    """How far it is: steps done, and lines of the oracle's log."""
    return recorded(folder), len(log.read_text("utf-8").splitlines()) if log.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("posterior", "kills", "longest", "share"),
    [("point", 5, 1.0, 0.34), ("ensemble", 2, 9.0, 0.5)],
)
def test_killed_again_and_again(
    settings: Settings,
    log: Path,
    tmp_path: Path,
    posterior: str,
    kills: int,
    longest: float,
    share: float,
) -> None:
    """Each kill comes at a random moment after something more was done; `share` rounds for each.

    An ensemble is trained, and explores, in processes that outlive the kill.
    """
    file, folder = tmp_path / "loop.yaml", tmp_path / "loop"
    kills = int(os.environ.get("BAYRACE_KILLS", kills))
    rounds = round(kills * share)
    raw = settings(oracle={"seconds": 0.3}, label={"workers": 2}, stop={"rounds": rounds})
    if posterior == "ensemble":
        raw["posterior"] = {"kind": "ensemble", "ensemble": {"members": 2}}
        raw["explore"]["workers"] = 2
        raw["select"]["by"] = "bald-ef"
    file.write_text(yaml.safe_dump(raw), "utf-8")
    random = np.random.default_rng(0)
    for _ in range(kills):
        before = moments(log, folder)
        with start(file) as process:
            while moments(log, folder) == before and process.poll() is None:
                time.sleep(0.02)
            time.sleep(random.uniform(0.0, longest))
            process.kill()
            printed, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, printed
    with start(file) as process:
        printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert f"ended: {rounds} rounds are done" in printed
    names = Counter(log.read_text("utf-8").splitlines())
    assert set(names.values()) == {1}, names  # each structure began once and ended once
    labels = json.loads((folder / "rounds.json").read_text("utf-8"))["rounds"][-1]
    assert lines(log) == {"start": labels["labels"], "end": labels["labels"]}
    store = LabelStore(folder / "loop.sqlite")
    assert [row.state for row in store.rows().values()] == ["done"] * labels["labels"]
    assert labels["labels"] > 2 * rounds
    assert labels["train"] + labels["valid"] == 12 + labels["labels"]


def test_runs_that_stop_at_once_are_learnt_from(settings: Settings, tmp_path: Path) -> None:
    """All that was met is nearer to known structures than `apart`, and uncertain all the same."""
    ended = run(settings(select={"min_distance": 1.0}, stop={"rounds": 1}))
    assert ended.reason == "1 rounds are done"
    assert not ended.problem
    assert ended.rounds[-1].labels > 0
    content = json.loads((tmp_path / "loop" / "rounds.json").read_text("utf-8"))
    assert content["rounds"][-1]["labels"] == ended.rounds[-1].labels


def test_an_exploration_that_fails_is_no_good_end() -> None:
    lost = [RUN, replace(RUN, uncertain=False, time=7.5)]
    ending = nothing_chosen(lost, {"like a training structure": 8}, pool=8)
    assert ending.verdict == "bad"
    assert "1 of 2 runs became uncertain or flew apart (the longest lasted 10 fs)" in ending.reason
    assert "like a training structure: 8" in ending.reason
    assert "explore.rule.max_force_error" in ending.reason
    assert nothing_chosen(lost[1:], {"repeated": 1}, pool=1).verdict == "good"


def test_giving_up_is_seen(settings: Settings, tmp_path: Path) -> None:
    """Every run flies apart before its first look: there is nothing but the known starts."""
    hot = {
        "temperatures": [300],
        "timestep": 500.0,
        "every": 10,
        "uncertainty_every": 10,
        "rule": None,
    }
    raw = settings(explore=hot)
    ended = run(raw)
    assert ended.problem
    assert "flew apart" in ended.reason
    page = (tmp_path / "loop" / "report.html").read_text("utf-8")
    assert "It had to give up." in page
    file = tmp_path / "loop.yaml"
    file.write_text(yaml.safe_dump(raw), "utf-8")
    again = CliRunner().invoke(app, ["active", str(file)])
    assert again.exit_code == 1
    assert "problem: 2 of 2 runs" in again.stdout
