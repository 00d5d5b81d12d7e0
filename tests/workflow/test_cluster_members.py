"""Members on the workers of a real dask cluster: the same bits as here, whatever dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("distributed")

from bayrace.config import Config, dump_config, make_config
from bayrace.core.outputs import Params
from bayrace.data.embedded import embedded
from bayrace.potential.potential import Potential
from bayrace.system.cluster import cluster
from bayrace.system.cluster_jobs import run_on_cluster
from bayrace.workflow import train as run
from bayrace.workflow.ensemble import member_config, train_members
from bayrace.workflow.folder import held
from bayrace.workflow.member import MemberProgress, SideBySide
from bayrace.workflow.workers import member_job, place_members

from ..clusters import address, dask_worker, running, wait_for

EPOCHS = 150  # long enough to be killed in the middle


def config(output: Path, **train: Any) -> Config:
    return make_config(
        {
            "seed": 5,
            "output": str(output),
            "data": {"train": f"{embedded('ethanol-train')}@:12", "valid": 4},
            "model": {"preset": "tiny"},
            "train": {
                "max_epochs": EPOCHS,
                "batch_size": 4,
                "device": "cpu",
                "threads": 1,
                "checkpoint_every": 0.01,
                **train,
            },
        }
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Params]:
    """The weights of two members that were trained alone, in this process."""
    folder = tmp_path_factory.mktemp("alone")
    alone = [member_config(config(folder), index, threads=1) for index in range(2)]
    return [run.train(each).potential.members for each in alone]


def same(folder: Path, expected: Sequence[Params]) -> None:
    """Every member, and their stack, to the bit."""
    stack = Potential.load(folder / "model.bayrace", device="cpu").members
    for index, weights in enumerate(expected):
        found = Potential.load(folder / f"member-{index}" / "model.bayrace", device="cpu").members
        for name, value in weights.items():
            assert torch.equal(found[name], value), name
            assert torch.equal(stack[name][index : index + 1], value), name


class Begun:
    """Watches members, and does something once as soon as some of them have begun."""

    def __init__(self, then: Any) -> None:
        self.then, self.done = then, False

    def __call__(self, members: Sequence[MemberProgress]) -> None:
        if not self.done and any(each.epoch >= 2 and each.state == "running" for each in members):
            self.done = True
            self.then()


def test_a_worker_that_dies_is_replaced_and_weights_are_the_same(
    tmp_path: Path, scheduler_file: Path, expected: list[Params]
) -> None:
    with dask_worker(scheduler_file) as first, dask_worker(scheduler_file):
        seen = Begun(first.kill)
        how = SideBySide(observer=seen, scheduler=address(scheduler_file))
        result = train_members(config(tmp_path / "run"), members=2, how=how)
    assert seen.done
    assert [member.state for member in result.members] == ["finished"] * 2
    assert [member.epoch for member in result.members] == [EPOCHS] * 2
    same(tmp_path / "run", expected)


def test_what_was_stopped_goes_on_there_or_here(
    tmp_path: Path, scheduler: str, expected: list[Params]
) -> None:
    """One worker: the first member saves and ends, the second is not begun."""
    ended: list[bool] = []
    how = SideBySide(
        observer=Begun(lambda: ended.append(True)), stop=lambda: bool(ended), scheduler=scheduler
    )
    given = config(tmp_path / "run")
    result = train_members(given, members=2, how=how)
    assert result.interrupted
    assert [member.state for member in result.members] == ["interrupted", "waiting"]
    assert 2 <= result.members[0].epoch < EPOCHS
    assert not held(tmp_path / "run" / "member-0")
    one = SideBySide(observer=Begun(ended.clear), scheduler=scheduler)
    again = train_members(given, members=2, how=one, resume=True)
    assert [member.state for member in again.members] == ["finished"] * 2
    same(tmp_path / "run", expected)


def test_processes_end_with_whoever_asked_for_them(
    tmp_path: Path, scheduler: str, expected: list[Params]
) -> None:
    """By command: killed without a warning, and continued on this machine."""
    (tmp_path / "config.yaml").write_text(dump_config(config(Path("run"))))
    command = ["-m", "bayrace", "train", "config.yaml", "--members", "2", "--scheduler", scheduler]
    history = tmp_path / "run" / "member-0" / "history.jsonl"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    with running(command, **quiet) as leader:
        wait_for(lambda: history.is_file() and history.read_text().count("\n") >= 2)
        leader.kill()
    wait_for(lambda: not held(history.parent))
    assert not (tmp_path / "run" / "model.bayrace").exists()
    again = [sys.executable, "-m", "bayrace", "train", "run", "--resume"]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "2 of 2 members" in done.stdout
    same(tmp_path / "run", expected)


def test_what_fails_there_is_told_here(tmp_path: Path, scheduler: str) -> None:
    (tmp_path / "in-the-way").write_text("")
    jobs = [
        member_job(index, config(tmp_path / name, lr=rate, max_gradient_norm=None), resume=None)
        for index, (name, rate) in enumerate((("in-the-way", 0.01), ("wild", 1e20)))
    ]
    with cluster(workers=1, scheduler=scheduler) as client:
        outcomes = run_on_cluster(client, jobs, folder=tmp_path, threads=1).outcomes
    assert "in-the-way is a file; name a folder" in outcomes[0].error
    assert "training diverged" in outcomes[1].error


def test_a_folder_that_workers_do_not_see(tmp_path: Path, scheduler: str) -> None:
    job = member_job(0, config(tmp_path / "run"), resume=None)
    with cluster(workers=1, scheduler=scheduler) as client:
        standing = run_on_cluster(client, [job], folder=tmp_path / "hidden", threads=1)
    assert "hidden: no such folder on" in standing.outcomes[0].error
    assert "a disk that all workers see" in standing.outcomes[0].error


def test_workers_of_a_cluster_are_not_counted_here(tmp_path: Path) -> None:
    there = SideBySide(scheduler="tcp://10.0.0.1:8786")
    assert place_members(config(tmp_path), there, members=8).threads == 1
    assert place_members(config(tmp_path, threads=3), there, members=8).threads == 3
    with pytest.raises(ValueError, match="workers=2: those of the cluster at tcp://10"):
        place_members(config(tmp_path), SideBySide(2, scheduler=there.scheduler), members=8)
