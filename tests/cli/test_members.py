from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from bayrace.cli.members import MemberLines, members_display
from bayrace.cli.progress import HEARTBEAT
from bayrace.potential.potential import Potential
from bayrace.workflow.member import MemberProgress

QUICK = ("-o", "model.preset=tiny", "-o", "train.batch_size=2", "-o", "train.threads=1")
RUNNING = MemberProgress(
    index=3,
    state="running",
    error="",
    pid=1,
    epoch=7,
    max_epochs=20,
    metrics={"energy_mae": 12.345, "forces_mae": 67.891},
    elapsed=61.0,
    eta=125.0,
)
WAITING = replace(RUNNING, index=4, state="waiting", pid=None, epoch=0, metrics={}, eta=None)
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


def start(data, folder, *options):
    """`bayrace train --members` in a process group of its own, as a shell would."""
    command = [sys.executable, "-m", "bayrace.cli.main", "train", str(data / "train.xyz"), *QUICK]
    return subprocess.Popen(
        [*command, "-o", f"output={folder}", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_epochs(process, *folders):
    histories = [folder / "history.jsonl" for folder in folders]
    while not all(path.exists() and path.stat().st_size for path in histories):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_kill_nine_of_all_and_resume_with_and_without_a_whole_checkpoint(bayrace, data, tmp_path):
    folder = tmp_path / "run"
    first, second = folder / "member-0", folder / "member-1"
    options = ("--members", "2", "--workers", "1", "-o", "train.max_epochs=8")
    with start(data, folder, *options) as process:
        wait_for_epochs(process, first, second)
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "model.bayrace").exists()
    before = {path: path.stat().st_mtime_ns for path in first.iterdir()}

    checkpoint = (second / "last.ckpt").read_bytes()
    (second / "last.ckpt").write_bytes(checkpoint[: len(checkpoint) // 2])
    failed = bayrace("train", folder, "--resume")
    assert failed.exit_code == 2
    assert f"member 1 failed: {second / 'last.ckpt'}: damaged or truncated" in failed.stdout
    assert "(1 of 2 members)" in failed.stdout
    assert Potential.load(folder / "model.bayrace").statistics["failed_members"] == [1]

    (second / "last.ckpt").write_bytes(checkpoint)
    result = bayrace("train", folder, "--resume")
    assert result.exit_code == 0, result.output
    assert "member 0  running" not in result.stdout
    assert "member 1  finished  epoch 8/8" in result.stdout
    assert "(2 of 2 members)" in result.stdout
    assert {path: path.stat().st_mtime_ns for path in first.iterdir()} == before
    assert len((second / "history.jsonl").read_text().splitlines()) == 8
    info = bayrace("info", folder / "model.bayrace")
    assert "ensemble, 2 weight samples" in info.stdout
    refused = bayrace("train", folder, "--members", "2")
    assert refused.exit_code == 2
    assert "holds an ensemble of 2; continue it with --resume" in refused.stderr


def test_control_c_saves_every_member(data, tmp_path):
    folder = tmp_path / "run"
    options = ("--members", "3", "--workers", "2", "-o", "train.max_epochs=100000")
    process = start(data, folder, *options)
    wait_for_epochs(process, folder / "member-0", folder / "member-1")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and to the members
    out, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert f"stopped and saved; continue with: bayrace train {folder} --resume" in out
    for index in (0, 1):
        assert f"member {index}  interrupted" in out
        saved = Potential.load(folder / f"member-{index}" / "model.bayrace")
        assert saved.statistics["reason"] == "interrupted"
    assert not (folder / "member-2").exists()
    assert not (folder / "model.bayrace").exists()


def test_workers_are_for_ensembles(bayrace, data, tmp_path):
    result = bayrace("train", data / "train.xyz", "--workers", 2, "-o", f"output={tmp_path}/run")
    assert result.exit_code == 2
    assert "say how many members with --members 8" in result.stderr


def test_plain_lines_for_changes_and_a_rare_heartbeat():
    now = [0.0]
    console = Console(file=io.StringIO(), width=200)
    lines = MemberLines(console, clock=lambda: now[0])
    for second in range(int(2.5 * HEARTBEAT)):
        now[0] = float(second)
        lines([RUNNING, WAITING])
    lines([replace(RUNNING, state="finished", pid=None), WAITING])
    printed = console.file.getvalue().splitlines()
    line = "member 3  running  epoch 7/20  MAE energy 12.35 meV, forces 67.89 meV/Å  elapsed 1m01s"
    assert printed == [*[f"{line}  eta 2m05s"] * 3, line.replace("running", "finished")]


def test_a_live_table_on_a_terminal():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with members_display(console) as observer:
        observer([RUNNING, WAITING])
    shown = console.file.getvalue()
    for text in ("running", "waiting", "7/20", "0/20", "12.35", "67.89", "1m01s", "2m05s"):
        assert text in shown
