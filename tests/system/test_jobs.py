"""Jobs in processes: what they answer, where they run, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from bayrace.system import jobs
from bayrace.system.cores import usable_cores
from bayrace.system.jobs import Job, Placement, Standing, place, run_jobs

WORK = """
import os, sys, time
from pathlib import Path
from bayrace.system.child import do_task


def work(task, stop):
    place = Path(task["folder"]) / task["name"]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    place.write_text(f"{os.getpid()} {cores} {os.environ['OMP_NUM_THREADS']}")
    match task["do"]:
        case "refuse":
            raise ValueError("a value nobody wants")
        case "break":
            raise RuntimeError("a mistake of ours")
        case "die":
            os.kill(os.getpid(), task["signal"])
        case "wait":
            while not stop():
                time.sleep(0.01)
            place.with_suffix(".saved").write_text("saved")
            return False
        case "hang":
            time.sleep(3600)
    return True


if __name__ == "__main__":
    sys.exit(do_task(work))
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that does as it is told, where processes of ours find it."""
    (tmp_path / "obedient.py").write_text(WORK)
    earlier = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv(
        "PYTHONPATH", f"{tmp_path}{os.pathsep}{earlier}" if earlier else f"{tmp_path}"
    )


def job(folder: Path, name: str, do: str = "work", **more: object) -> Job:
    task = {"folder": str(folder), "name": name, "do": do, **more}
    return Job(name, "obedient", task, remedy="try again")


def free(count: int) -> Placement:
    return Placement(((),) * count, threads=1)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_each_outcome_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = [
        job(tmp_path, "good"),
        job(tmp_path, "refused", "refuse"),
        job(tmp_path, "broken", "break"),
        job(tmp_path, "killed", "die", signal=int(signal.SIGKILL)),
    ]
    ended = run_jobs(asked, placement=free(2)).outcomes
    assert [ended[place].state for place in range(4)] == ["finished", *["failed"] * 3]
    assert ended[1].error == "a value nobody wants"
    assert ended[2].error == "RuntimeError: a mistake of ours"
    assert "broken: Traceback" in caplog.text
    assert ended[3].error == "killed by SIGKILL (out of memory?); try again"


def test_cores_and_threads(tmp_path: Path) -> None:
    core = usable_cores()[-1]
    run_jobs([job(tmp_path, "one")], placement=Placement(((core,),), threads=3))
    _, cores, threads = (tmp_path / "one").read_text().split()
    assert (cores, threads) == (str(core), "3")


def test_stopped_jobs_save_and_the_rest_never_starts(tmp_path: Path) -> None:
    begun = threading.Event()

    def watch(standing: Standing) -> None:
        if (tmp_path / "first").exists() and standing.running:
            begun.set()

    asked = [job(tmp_path, "first", "wait"), job(tmp_path, "second")]
    standing = run_jobs(asked, placement=free(1), watch=watch, stop=begun.is_set)
    assert {place: each.state for place, each in standing.outcomes.items()} == {0: "interrupted"}
    assert (tmp_path / "first.saved").exists()
    assert not (tmp_path / "second").exists()


def test_a_signal_from_elsewhere_is_no_interruption(tmp_path: Path) -> None:
    asked = [job(tmp_path, "one", "wait")]

    def watch(standing: Standing) -> None:
        if (tmp_path / "one").exists():
            for pid in standing.running.values():
                os.kill(pid, signal.SIGTERM)

    outcome = run_jobs(asked, placement=free(1), watch=watch).outcomes[0]
    assert (outcome.state, outcome.error) == ("failed", "stopped by a signal; try again")
    assert (tmp_path / "one.saved").exists()


def test_no_process_outlives_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_PATIENCE", 0.1)  # one of them does not listen
    pids: list[int] = []

    def watch(standing: Standing) -> None:
        if all((tmp_path / name).exists() for name in ("deaf", "good")):
            pids.extend(standing.running.values())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(
            [job(tmp_path, "deaf", "hang"), job(tmp_path, "good", "wait")],
            placement=free(2),
            watch=watch,
        )
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_jobs_end_with_whoever_asked(tmp_path: Path) -> None:
    """Also if that one is killed and can ask nobody to end."""
    script = f"""
    from pathlib import Path
    from bayrace.system.jobs import Job, Placement, run_jobs
    task = {{"folder": {str(tmp_path)!r}, "name": "one", "do": "wait"}}
    run_jobs([Job("one", "obedient", task)], placement=Placement(((),), threads=1))
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    while not (tmp_path / "one").exists() or not (tmp_path / "one").read_text():
        time.sleep(0.01)
    pid = int((tmp_path / "one").read_text().split()[0])
    parent.kill()
    parent.wait()
    while not (tmp_path / "one.saved").exists():
        time.sleep(0.01)
    while alive(pid):
        time.sleep(0.01)


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "usable_cores", lambda: (0, 1, 2, 3))
    assert place(2, workers=None, threads=None) == Placement(((0, 1), (2, 3)), 2)
    assert place(8, workers=None, threads=2) == Placement(((0, 1), (2, 3)), 2)
    assert place(8, workers=3, threads=1, pin=False) == Placement(((),) * 3, 1)
    with pytest.raises(ValueError, match="workers=0: at least 1"):
        place(8, workers=0, threads=None)
