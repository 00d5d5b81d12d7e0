"""Small real ensembles on a few structures of ethanol, each member in a process of its own."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import ase.io
import pytest
import torch

from bayrace.config import changed, make_config
from bayrace.data.embedded import embedded, embedded_frames
from bayrace.data.split import fingerprint
from bayrace.potential.potential import Potential
from bayrace.system import jobs
from bayrace.workflow import train as run
from bayrace.workflow.ensemble import EnsembleError, member_config, train_members
from bayrace.workflow.folder import SHARED, clear_folder
from bayrace.workflow.member import SideBySide, last_line
from bayrace.workflow.workers import place_members


def config(output, **train):
    return make_config(
        {
            "seed": 5,
            "output": str(output),
            "data": {
                "train": f"{embedded('ethanol-train')}@:12",
                "valid": 4,
                "test": {"hot": f"{embedded('ethanol-hot')}@:2"},
            },
            "model": {"preset": "tiny"},
            "train": {"max_epochs": 2, "batch_size": 4, "device": "cpu", "threads": 1, **train},
        }
    )


class Seen:
    """An observer that remembers what the members were doing."""

    def __init__(self):
        self.together, self.cores, self.states = 0, {}, {}

    def __call__(self, members):
        running = [member for member in members if member.pid is not None]
        self.together = max(self.together, len(running))
        for member in members:
            self.states.setdefault(member.index, []).append(member.state)
        for member in running:
            try:
                self.cores[member.index] = os.sched_getaffinity(member.pid)
            except (AttributeError, ProcessLookupError):  # not Linux; just ended
                continue


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The result of an ensemble of three, two at a time, and what was seen of it."""
    seen = Seen()
    settings = config(tmp_path_factory.mktemp("ensemble") / "run")
    return train_members(settings, members=3, how=SideBySide(2, observer=seen)), seen


@pytest.fixture(scope="module")
def members(trained):
    """The potentials of the members."""
    folder = trained[0].folder
    return [Potential.load(folder / f"member-{k}" / "model.bayrace") for k in range(3)]


def test_members_do_not_read_the_data_again(tmp_path):
    """The file is gone before they start, and each is what a training alone comes to."""
    images = ase.io.read(embedded("ethanol-train"), ":12")
    ase.io.write(tmp_path / "data.xyz", images)
    given = config(tmp_path / "run")
    data = changed(given.data, train=(str(tmp_path / "data.xyz"),))
    given = changed(given, data=data)
    ready = run.prepare(given)
    (tmp_path / "data.xyz").unlink()
    result = train_members(given, members=2, how=SideBySide(2), prepared=ready)
    assert not result.failed
    assert not (tmp_path / "run" / SHARED).exists()
    ase.io.write(tmp_path / "data.xyz", images)
    alone = changed(member_config(given, 1, threads=1), output=str(tmp_path / "alone"))
    expected = run.train(alone).potential
    found = Potential.load(tmp_path / "run" / "member-1" / "model.bayrace")
    assert found.spec == expected.spec
    assert found.references == expected.references
    for name, value in expected.members.items():
        assert torch.equal(value, found.members[name]), name


def test_members_differ_but_share_data_and_split(trained, members):
    assert [member.config["seed"] for member in members] == [5, 6, 7]
    ready = run.prepare(config(trained[0].folder))
    assert {member.fingerprint for member in members} == {fingerprint(ready.train.frames)}
    for name, value in members[0].members.items():
        assert name == "radial" or not torch.equal(value, members[1].members[name]), name


def test_the_stacked_potential_is_its_members(trained, members):
    result, _ = trained
    stored = Potential.load(result.folder / "model.bayrace")
    assert stored.posterior.name == "ensemble"
    training = run.prepare(config(result.folder)).train
    assert stored.distances.usual(training) == stored.statistics["distance_gap"]
    assert stored.statistics["epoch"] == [each.statistics["epoch"] for each in members]
    for name, value in stored.members.items():
        assert torch.equal(value, torch.cat([each.members[name] for each in members])), name
    frames = embedded_frames("ethanol-test")[:3]
    apart = torch.stack([each.predict(frames).energy.mean for each in members])
    assert stored.calibration is not None  # of all members together
    together = replace(stored, calibration=None).predict(frames).energy
    torch.testing.assert_close(together.mean, apart.mean(0), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(together.epistemic, apart.var(0, correction=0), rtol=1e-3, atol=0.0)


def test_the_test_sets_are_evaluated_with_all_members(trained):
    result, _ = trained
    (evaluation,) = result.evaluations
    assert json.loads((result.folder / "test.json").read_text())["hot"]["forces"]["count"] == 54
    frames = embedded_frames("ethanol-hot")[:2]
    total = result.potential.predict(frames).energy.total.mean()
    assert evaluation.energy.spread() == pytest.approx(float(total) ** 0.5, rel=1e-5)


def test_a_member_is_an_ordinary_run(trained, members, tmp_path):
    """Trained here, in another process and alone, it ends with the same weights."""
    settings = member_config(config(tmp_path), 1, threads=1)
    alone = run.train(settings).potential
    assert settings.output == str(tmp_path / "member-1")
    assert all(torch.equal(alone.members[k], v) for k, v in members[1].members.items())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the platform cannot pin")
def test_workers_keep_to_their_cores(trained):
    result, seen = trained
    slots = place_members(config(result.folder), SideBySide(2), members=3).slots
    assert seen.together == 2
    assert seen.cores[0] == set(slots[0])
    assert seen.cores[1] == set(slots[1])
    assert tuple(seen.cores[2]) in slots


def test_states_go_forward(trained):
    result, seen = trained
    for states in seen.states.values():
        assert list(dict.fromkeys(states)) in (
            ["running", "finished"],
            ["waiting", "running", "finished"],
        )
    assert [member.epoch for member in result.members] == [2, 2, 2]
    assert all(member.metrics["forces_mae"] > 0 for member in result.members)


def test_members_that_fail_do_not_lose_the_others_and_resume_repairs(tmp_path, caplog):
    """Member 1 finds a file where its folder should be, member 2 is killed from outside."""
    (tmp_path / "member-1").write_text("in the way")

    def kill_the_third(members):
        third = members[2]
        if third.pid is not None:
            os.kill(third.pid, signal.SIGKILL)

    settings = config(tmp_path)
    how = SideBySide(3, observer=kill_the_third)
    result = train_members(settings, members=3, how=how, overwrite=True)
    assert [member.state for member in result.members] == ["finished", "failed", "failed"]
    assert "member-1 is a file; name a folder" in result.members[1].error
    assert "killed by SIGKILL" in result.members[2].error
    assert "lacks members that failed: 1, 2" in caplog.text
    assert result.potential.statistics["failed_members"] == [1, 2]
    assert next(iter(result.potential.members.values())).shape[0] == 1

    (tmp_path / "member-1").unlink()
    before = _stamps(tmp_path / "member-0")
    again = train_members(settings, members=3, how=SideBySide(2), resume=True)
    assert [member.state for member in again.members] == ["finished"] * 3
    assert _stamps(tmp_path / "member-0") == before
    assert next(iter(again.potential.members.values())).shape[0] == 3


def _stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_if_all_diverge_the_error_tells_of_each(tmp_path):
    settings = config(tmp_path, lr=1e20, max_gradient_norm=None)
    with pytest.raises(EnsembleError, match=r"(?s)member 0: training diverged.*member 1: training"):
        train_members(settings, members=2, how=SideBySide(2))
    assert not (tmp_path / "model.bayrace").exists()


def test_the_split_seed_alone_decides_the_split(tmp_path):
    def frames(seed, split_seed):
        overrides = [f"seed={seed}", f"data.split_seed={split_seed}"]
        raw = config(tmp_path).model_dump(mode="json")
        return fingerprint(run.read_splits(make_config(raw, overrides)).train)

    assert frames(1, "null") == frames(1, 1) == frames(2, 1)
    assert frames(2, "null") == frames(2, 2) != frames(1, 1)


def test_a_crew_fits_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "usable_cores", lambda: tuple(range(8)))

    def crew(members, workers=None, threads=None):
        how = SideBySide(workers)
        return place_members(config(tmp_path, threads=threads), how, members=members)

    assert (len(crew(16).slots), crew(16).threads) == (8, 1)
    assert (len(crew(3).slots), crew(3).threads) == (3, 2)
    assert (crew(8, workers=2).slots, crew(8, workers=2).threads) == (
        ((0, 1, 2, 3), (4, 5, 6, 7)),
        4,
    )
    assert (len(crew(8, threads=4).slots), crew(8, threads=4).threads) == (2, 4)
    loose = place_members(config(tmp_path), SideBySide(3, pin=False), members=8)
    assert loose.slots == ((), (), ())
    with pytest.raises(ValueError, match="workers=0: at least 1"):
        crew(8, workers=0)


@pytest.mark.parametrize(
    ("files", "members", "options", "message"),
    [
        ({}, 1, {}, "members=1: an ensemble has at least 2; leave --members out"),
        ({}, 2, {"resume": True}, "has nothing to resume; start without --resume"),
        ({"last.ckpt": ""}, 2, {}, "holds the run of one model, not of an ensemble; replace it"),
        ({"last.ckpt": ""}, 2, {"resume": True}, "--resume and without --members"),
        ({"notes.txt": ""}, 2, {}, "holds other files; replace it with --overwrite"),
        ({"ensemble.json": '{"members": 4}'}, 4, {}, "an ensemble of 4; continue it with --resume"),
        ({"ensemble.json": '{"members": 4}'}, 3, {"resume": True}, "may only grow"),
        ({"ensemble.json": "{"}, 4, {"resume": True}, "ensemble.json: damaged"),
    ],
)
def test_folders_that_are_refused(tmp_path, files, members, options, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        train_members(config(tmp_path), members=members, **options)
    assert {path.name for path in tmp_path.iterdir()} == set(files)


def test_one_model_does_not_resume_an_ensemble(tmp_path):
    (tmp_path / "ensemble.json").write_text('{"members": 2}')
    with pytest.raises(ValueError, match="holds an ensemble; resume it with"):
        run.train(config(tmp_path), resume=True)


def test_members_do_not_know_how_many_they_are(tmp_path):
    """Else all would be trained again when one is added."""

    def grown(count):
        posterior = {"kind": "ensemble", "ensemble": {"members": count}}
        return make_config(config(tmp_path).model_dump() | {"posterior": posterior})

    assert member_config(grown(2), 1, threads=1) == member_config(grown(9), 1, threads=1)


def test_clearing_takes_our_files_and_no_others(tmp_path):
    for name in ("ensemble.json", "model.bayrace", "notes.txt"):
        (tmp_path / name).touch()
    ours = ("member-0/last.ckpt", "member-0/.last.ckpt.tmp", "swag/history.jsonl", "ivon/last.ckpt")
    for name in (*ours, "swag/snapshots/000007.ckpt", "member-1/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    clear_folder(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"notes.txt", "member-1", "member-1/notes.txt"}


def test_the_last_whole_line_of_a_growing_file(tmp_path):
    path = tmp_path / "history.jsonl"
    assert last_line(path) == {}
    path.write_text('{"epoch": 1}')
    assert last_line(path) == {}
    path.write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    assert last_line(path) == {"epoch": 2}
    path.write_text("\n".join(json.dumps({"epoch": k, "pad": "x" * 90}) for k in range(999)) + "\n")
    assert last_line(path)["epoch"] == 998
