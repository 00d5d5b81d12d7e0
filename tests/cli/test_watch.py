"""`bayrace watch` on runs that have ended, that go on, and that were killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bayrace.cli.watch import curve
from bayrace.train.state import HISTORY
from bayrace.workflow.folder import held, locked
from bayrace.workflow.look import look
from bayrace.workflow.loop.state import STATE, State
from bayrace.workflow.loop.steps import Trained

LINE = (
    '{{"epoch": {0}, "step": {1}, "learning_rate": 0.01, "train": {{"loss": 2.5}}, '
    '"valid": {{"forces_mae": {2}, "energy_mae": 3.0}}, "elapsed": {3}}}\n'
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two of ten epochs, in the folder of a loop that has done a step."""
    folder = tmp_path / "round-0" / "run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("train: {max_epochs: 10, max_time: null}\n")
    lines = LINE.format(1, 5, 40.0, 2.0) + LINE.format(2, 10, 20.0, 4.0)
    (folder / HISTORY).write_text(lines + '{"epoch": 3, "st')  # is being written
    State(tmp_path / STATE).record(0, Trained(9, 3), seconds=12.0)
    return folder


def test_once(bayrace, run: Path) -> None:
    result = bayrace("watch", run, "--once")
    assert result.exit_code == 0, result.output
    assert "2/10" in result.output
    assert "20 meV/Å, 3 meV" in result.output
    assert "█▁" in result.output
    assert "\nrun  " in result.output  # the name of its folder
    assert "nobody works in it now" in result.output
    missing = bayrace("watch", run / "nowhere")
    assert missing.exit_code == 2
    assert "no such folder" in missing.output


def test_what_a_folder_tells(run: Path) -> None:
    loop = run.parents[1]
    with locked(run):
        now = look(loop)
        assert now.running
        assert held(run)
        assert not held(loop)
    (training,) = now.trainings
    assert (training.name, training.epoch, training.max_epochs) == ("round-0/run", 2, 10)
    assert (training.errors, training.eta, training.running) == ((40.0, 20.0), 16.0, True)
    assert now.steps == ((0, Trained.name, 12.0),)
    assert not look(loop).running


def test_a_lock_that_a_killed_process_left_is_none(run: Path) -> None:
    (run / ".lock").touch()
    assert not held(run)
    with locked(run):  # looking has not kept it
        pass


def test_follows_until_the_end(run: Path) -> None:
    """Lines come as epochs end; the command ends with the run."""
    command = [sys.executable, "-m", "bayrace", "watch", str(run)]
    with locked(run):
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert watching.stdout is not None
        assert "2/10" in watching.stdout.readline()
        with (run / HISTORY).open("w") as file:
            file.write(LINE.format(3, 15, 10.0, 6.0))
        assert "3/10" in watching.stdout.readline()
    rest, _ = watching.communicate()
    assert rest == "ended\n"
    assert watching.returncode == 0


def test_curves() -> None:
    assert curve(()) == ""
    assert curve((1.0,)) == "▁"
    assert curve((3.0, 2.0, 1.0)) == "█▅▁"
    assert len(curve(tuple(float(k) for k in range(1000)))) == 24
