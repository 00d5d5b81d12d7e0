"""`torchrun -m bayrace train`: killed, stopped and resumed, also by another number of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bayrace.config import ConfigError, load_config
from bayrace.potential.potential import Potential
from bayrace.train import checkpoint
from bayrace.train.team import ALONE, Team
from bayrace.workflow.together import check_team

EPOCHS = 14
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@pytest.fixture(scope="module")
def config(data: Path) -> Path:
    """Float64, on twelve structures of ethanol, without what follows a training."""
    path = data / "together.yaml"
    path.write_text(
        f"data: {{train: {data}/train.xyz, valid: 3}}\nmodel: {{preset: tiny, dtype: float64}}\n"
        f"loss: {{kind: mse}}\ntrain: {{max_epochs: {EPOCHS}, batch_size: 4, threads: 1}}\n"
        "posterior: point\ncalibrate: none\n",
        encoding="utf-8",
    )
    return path


def start(config: Path, output: Path, *more: str, processes: int = 2) -> subprocess.Popen[str]:
    command = [*TORCHRUN, str(processes), "-m", "bayrace", "train", str(config), *more]
    return subprocess.Popen(
        [*command, "-s", f"output={output}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    printed, _ = process.communicate()
    return process.returncode, printed


def wait_for_epoch(output: Path, epoch: int, process: subprocess.Popen[str]) -> None:
    history = output / "history.jsonl"
    while not history.is_file() or history.read_bytes().count(b"\n") < epoch:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def process_of_rank(launcher: int, rank: int) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    mark = f"RANK={rank}".encode()
    (found,) = (
        int(child)
        for child in children
        if mark in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    )
    return found


def kill(output: Path, process: subprocess.Popen[str], *, rank: int, epoch: int) -> None:
    """Kill one process after an epoch; the other ends, and so does torchrun."""
    wait_for_epoch(output, epoch, process)
    os.kill(process_of_rank(process.pid, rank), signal.SIGKILL)
    code, _ = finish(process)
    assert code != 0
    assert not (output / ".lock").exists() or rank == 0
    assert epochs_of(output) < EPOCHS


def epochs_of(output: Path) -> int:
    return int(checkpoint.load(output / checkpoint.LAST)[1]["counters"]["epoch"])


def weights(output: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(output / checkpoint.LAST)[0]


@pytest.fixture(scope="module")
def uninterrupted(config: Path) -> Path:
    output = config.parent / "uninterrupted"
    code, printed = finish(start(config, output))
    assert code == 0, printed
    assert printed.count("2 processes share every batch") == 1
    assert printed.count(f"potential: {output / 'model.bayrace'}") == 1
    assert Potential.load(output / "model.bayrace").statistics["train_frames"] == 9
    return output


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at /proc")
def test_killed_stopped_and_resumed_with_the_same_bits(
    config: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    kill(output, start(config, output), rank=1, epoch=2)
    process = start(config, output, "--resume")
    wait_for_epoch(output, epochs_of(output) + 2, process)
    process.terminate()
    code, printed = finish(process)
    assert code != 0
    assert printed.count("stopped and saved") == 1
    assert epochs_of(output) < EPOCHS
    code, printed = finish(start(config, output, "--resume"))
    assert code == 0, printed
    expected = weights(uninterrupted)
    assert {name: value.equal(expected[name]) for name, value in weights(output).items()} == (
        dict.fromkeys(expected, True)
    )


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at /proc")
def test_resumed_by_one_process(bayrace, config: Path, uninterrupted: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    kill(output, start(config, output), rank=0, epoch=2)
    result = bayrace("train", config, "--resume", "-s", f"output={output}")
    assert result.exit_code == 0, result.output
    expected = weights(uninterrupted)
    for name, value in weights(output).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-11, msg=name)


def test_what_cannot_be_trained_together_is_refused(config: Path) -> None:
    team = Team(rank=0, size=2)
    with pytest.raises(ConfigError, match="without torchrun"):
        check_team(load_config(config), team, members=2)
    with pytest.raises(ConfigError, match="use cuda, or auto"):
        check_team(load_config(config, ["train.device=cuda:1"]), team, members=None)
    check_team(load_config(config), ALONE, members=2)
