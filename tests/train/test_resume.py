"""Runs that are killed, stopped or resumed end where an uninterrupted run ends, bit for bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bayrace.train import checkpoint
from bayrace.train.callbacks import Callbacks
from bayrace.train.checkpoint import CheckpointError
from bayrace.train.loop import fit
from bayrace.train.task import Task

RUNNER = Path(__file__).with_name("runner.py")
TIMES = {"elapsed", "valid_seconds", "history_bytes"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def start_and_signal(
    folder: Path,
    number: signal.Signals,
    *,
    at_step: int,
    pause: float,
    every: float,
    more: str = "",
) -> tuple[int, str]:
    """Run the runner, signal it once it has done `at_step` steps; exit code and rest of output."""
    command = [sys.executable, str(RUNNER), str(folder), str(pause), str(every), more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == at_step:
                break
        process.send_signal(number)
        rest = process.stdout.read()
    return process.returncode, rest


def end(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Tensors, counters and history of a run, times left out."""
    tensors, content = checkpoint.load(folder / checkpoint.LAST)
    counters = {k: v for k, v in content["counters"].items() if k not in TIMES}
    lines = (folder / "history.jsonl").read_text().splitlines()
    history = [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]
    return tensors, counters | content["schedule"], history


def assert_same_end(first: Path, second: Path) -> None:
    (tensors, counters, history), (others, *rest) = end(first), end(second)
    assert [counters, history] == rest
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    best, other = (checkpoint.load(folder / checkpoint.BEST)[0] for folder in (first, second))
    assert all(torch.equal(best[name], other[name]) for name in best)


@pytest.mark.parametrize(("pause", "every"), [(0.01, 0.0), (0.03, 0.1)])
def test_kill_in_the_middle_of_an_epoch(
    runner: ModuleType, tmp_path: Path, pause: float, every: float
) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    code, _ = start_and_signal(killed, signal.SIGKILL, at_step=13, pause=pause, every=every)
    assert code == -signal.SIGKILL
    counters = checkpoint.load(killed / checkpoint.LAST)[1]["counters"]
    assert 5 <= counters["step"] < 20
    assert counters["step"] % 5 == counters["batch"]
    runner.train(killed, max_epochs=4, resume=True)
    runner.train(whole, max_epochs=4)
    assert_same_end(killed, whole)


def test_kill_while_learning_variances(runner: ModuleType, tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    code, _ = start_and_signal(
        killed, signal.SIGKILL, at_step=13, pause=0.01, every=0.0, more="ivon"
    )
    assert code == -signal.SIGKILL
    assert 5 <= checkpoint.load(killed / checkpoint.LAST)[1]["counters"]["step"] < 20
    runner.train(killed, max_epochs=4, resume=True, **runner.ivon())
    runner.train(whole, max_epochs=4, **runner.ivon())
    assert_same_end(killed, whole)
    assert "optimiser/hessian/weights" in end(whole)[0]
    with pytest.raises(CheckpointError, match=r"settings\.optimiser\.ess was 20\.0, now 40\.0"):
        runner.train(whole, max_epochs=4, resume=True, **runner.ivon(ess=40.0))


@pytest.mark.parametrize("name", ["muon", "soap"])
def test_kill_with_an_optimiser_that_preconditions(
    runner: ModuleType, tmp_path: Path, name: str
) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    code, _ = start_and_signal(killed, signal.SIGKILL, at_step=13, pause=0.01, every=0.0, more=name)
    assert code == -signal.SIGKILL
    assert 5 <= checkpoint.load(killed / checkpoint.LAST)[1]["counters"]["step"] < 20
    runner.train(killed, max_epochs=4, resume=True, **runner.preconditioned(name))
    runner.train(whole, max_epochs=4, **runner.preconditioned(name))
    assert_same_end(killed, whole)
    assert "optimiser/momentum/8x8" in end(whole)[0]


def test_epochs_after_the_checkpoint_are_seen_again_and_the_same(
    runner: ModuleType, tmp_path: Path
) -> None:
    seen: list[tuple[int, torch.Tensor]] = []

    def look(epoch: int, params: dict[str, torch.Tensor]) -> None:
        seen.append((epoch, params["weights"].detach().clone()))

    def run(*, resume: bool) -> None:
        fit(
            Task(
                runner.model(),
                lambda epoch: runner.squares(),
                runner.dataset(20, seed=0),
                runner.dataset(6, seed=1),
                runner.settings(max_epochs=5, valid_every=5),
                tmp_path,
            ),
            resume=resume,
            callbacks=Callbacks(stop=lambda: not resume and len(seen) == 4, after_epoch=look),
        )

    run(resume=False)
    first, last = list(seen), checkpoint.load(tmp_path / checkpoint.LAST)[0]
    assert [epoch for epoch, _ in first] == [1, 2, 3, 4]
    assert torch.equal(first[3][1], last["params/weights"])  # themselves, not their average
    assert not torch.equal(first[3][1], last["average/weights"])
    seen.clear()
    (tmp_path / checkpoint.LAST).unlink()
    run(resume=False)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first, seen, strict=True))
    run(resume=True)
    assert [epoch for epoch, _ in seen] == [1, 2, 3, 4, 5]


def test_lines_after_the_checkpoint_are_not_doubled(runner: ModuleType, tmp_path: Path) -> None:
    runner.train(tmp_path, max_epochs=2)
    last = (tmp_path / checkpoint.LAST).read_bytes()
    runner.train(tmp_path, max_epochs=4, resume=True)
    (tmp_path / checkpoint.LAST).write_bytes(last)  # as if killed before the later ones
    result = runner.train(tmp_path, max_epochs=4, resume=True)
    assert [line["epoch"] for line in result.history] == [1, 2, 3, 4]


def test_termination_saves_and_ends_cleanly(runner: ModuleType, tmp_path: Path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    code, rest = start_and_signal(stopped, signal.SIGTERM, at_step=7, pause=0.05, every=1e9)
    assert code == 0
    assert rest.splitlines()[-1] == "ended: interrupted"
    assert checkpoint.load(stopped / checkpoint.LAST)[1]["counters"]["step"] >= 7
    runner.train(stopped, max_epochs=4, resume=True)
    runner.train(whole, max_epochs=4)
    assert_same_end(stopped, whole)


def test_a_longer_run_goes_on_and_a_finished_one_returns(
    runner: ModuleType, tmp_path: Path
) -> None:
    first = runner.train(tmp_path / "parts", max_epochs=2)
    again = runner.train(tmp_path / "parts", max_epochs=2, resume=True)
    assert again.history == first.history
    assert torch.equal(first.params["weights"], again.params["weights"])
    runner.train(tmp_path / "parts", max_epochs=4, resume=True)
    runner.train(tmp_path / "whole", max_epochs=4)
    assert_same_end(tmp_path / "parts", tmp_path / "whole")


def test_other_settings_are_refused_by_name(runner: ModuleType, tmp_path: Path) -> None:
    runner.train(tmp_path, max_epochs=1)
    faster = replace(runner.settings().optimiser, lr=0.1)
    message = r"batch_size was 4, now 2; settings.optimiser.lr was 0.05, now 0.1"
    with pytest.raises(CheckpointError, match=message):
        runner.train(tmp_path, resume=True, optimiser=faster, batch_size=2)


def test_a_checkpoint_under_old_names_goes_on(runner: ModuleType, tmp_path: Path) -> None:
    runner.train(tmp_path / "parts", max_epochs=2)
    tensors, content = checkpoint.load(tmp_path / "parts" / checkpoint.LAST)
    settings = content["identity"]["settings"]
    settings["clip"] = settings.pop("max_gradient_norm")
    settings["improvement"] = settings.pop("min_improvement")
    checkpoint.save(tmp_path / "parts" / checkpoint.LAST, tensors, content)
    runner.train(tmp_path / "parts", max_epochs=4, resume=True)
    runner.train(tmp_path / "whole", max_epochs=4)
    assert_same_end(tmp_path / "parts", tmp_path / "whole")
    with pytest.raises(CheckpointError, match=r"settings\.max_gradient_norm was 5\.0, now 1\.0"):
        runner.train(tmp_path / "parts", max_epochs=4, resume=True, max_gradient_norm=1.0)


def test_other_data_are_refused(runner: ModuleType, tmp_path: Path) -> None:
    runner.train(tmp_path, max_epochs=1)
    with pytest.raises(CheckpointError, match=r"train_data\.frames was"):
        fit(
            Task(
                runner.model(),
                lambda epoch: runner.squares(),
                runner.dataset(20, seed=5),
                runner.dataset(6, seed=1),
                runner.settings(),
                tmp_path,
            ),
            resume=True,
        )


def test_a_run_is_not_overwritten(runner: ModuleType, tmp_path: Path) -> None:
    runner.train(tmp_path, max_epochs=1)
    with pytest.raises(CheckpointError, match=r"last.ckpt exists; resume that run"):
        runner.train(tmp_path, max_epochs=1)


def test_nothing_to_resume(runner: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint; start the run without resume"):
        runner.train(tmp_path, resume=True)


def test_damaged_checkpoint(runner: ModuleType, tmp_path: Path) -> None:
    runner.train(tmp_path, max_epochs=1)
    path = tmp_path / checkpoint.LAST
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        runner.train(tmp_path, resume=True)
