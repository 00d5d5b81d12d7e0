"""Labels in parallel: all of them, once each, whatever fails or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase.calculators.emt import EMT

pytest.importorskip("distributed")

from dask import config as dask_config

from bayrace.data.frame import DataError, Frame
from bayrace.label import store as label_store
from bayrace.label.label import LabelSettings, Progress, label_frames
from bayrace.label.oracle import label_with
from bayrace.label.oracles.ase import AseOracle
from bayrace.label.store import LabelStore, Worker

from ..clusters import address, dask_worker, running, wait_for

Make = Callable[..., AseOracle]

SCRIPT = """
import signal, sys
from ase.build import bulk
from bayrace.label.label import LabelSettings, label_frames
from bayrace.label.oracles.ase import AseOracle
from bayrace.data.frame import frame_from_atoms

signal.signal(signal.SIGINT, signal.default_int_handler)  # `nohup make test &` ignores it
calculator, log, store, count, seconds, *scheduler = sys.argv[1:]
frames = []
for seed in range(int(count)):
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=seed + 1)
    frames.append(frame_from_atoms(atoms, keys=None))
oracle = AseOracle(calculator, {"log": log, "seconds": float(seconds)})
settings = LabelSettings(workers=2, scheduler=scheduler[0] if scheduler else None)
result = label_frames(frames, oracle, store=store, settings=settings)
print(len(result.labelled))
"""


def lines(log: Path) -> Counter[str]:
    """How often each kind of line is in the log."""
    return Counter(line.split()[0] for line in log.read_text("utf-8").splitlines())


def check(frames: list[Frame], labelled: list[Frame | None]) -> None:
    for frame, found in zip(frames, labelled, strict=True):
        expected = label_with(EMT(), frame)
        assert found is not None
        assert found.energy == expected.energy
        np.testing.assert_array_equal(found.forces, expected.forces)
        np.testing.assert_array_equal(found.stress, expected.stress)
        assert found.origin == frame.origin


def test_all_are_labelled_in_order(
    metals: list[Frame], counting: Make, log: Path, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    store = tmp_path / "labels.sqlite"
    result = label_frames(
        [*metals, metals[0]],
        counting(),
        store=store,
        settings=LabelSettings(workers=2),
        progress=seen.append,
    )
    check([*metals, metals[0]], result.frames)
    assert result.failures == {}
    assert lines(log) == {"start": 10, "end": 10}  # equal ones are computed once
    assert seen[0] == Progress(0, 0, 10, 0, 0)
    assert seen[-1] == Progress(10, 0, 10, 10, 0)
    again = label_frames(metals, counting(), store=store, settings=LabelSettings())
    check(metals, again.frames)
    assert lines(log) == {"start": 10, "end": 10}
    assert LabelStore(store).calls() == 10


def test_more_frames_are_added(
    metals: list[Frame], counting: Make, log: Path, tmp_path: Path
) -> None:
    store = tmp_path / "labels.sqlite"
    label_frames(metals[:3], counting(), store=store, settings=LabelSettings())
    labelled = [replace(frame, energy=0.0) for frame in metals[:5]]  # other labels do not matter
    check(
        metals[:5], label_frames(labelled, counting(), store=store, settings=LabelSettings()).frames
    )
    assert lines(log)["start"] == 5


def test_calls_that_fail_are_repeated(
    metals: list[Frame], counting: Make, log: Path, tmp_path: Path
) -> None:
    result = label_frames(
        metals,
        counting(failing=0.3),
        store=tmp_path / "labels.sqlite",
        settings=LabelSettings(workers=2, retries=20),
    )
    check(metals, result.frames)
    found = lines(log)
    assert found["end"] == 10
    assert found["start"] >= 13


def test_failures_are_recorded(
    metals: list[Frame], counting: Make, log: Path, tmp_path: Path
) -> None:
    store = tmp_path / "labels.sqlite"
    settings = LabelSettings(retries=1)
    result = label_frames(metals[:2], counting(failing=1.0), store=store, settings=settings)
    assert result.frames == [None, None]
    assert list(result.failures) == ["metals.xyz, frame 0", "metals.xyz, frame 1"]
    assert "no convergence" in result.failures["metals.xyz, frame 1"]
    assert lines(log) == {"start": 4}
    label_frames(metals[:2], counting(failing=1.0), store=store, settings=settings)
    assert lines(log) == {"start": 4}  # enough is enough
    label_frames(metals[:2], counting(failing=1.0), store=store, settings=LabelSettings(retries=2))
    assert lines(log) == {"start": 6}
    assert {row.tries for row in LabelStore(store).rows().values()} == {3}


@pytest.mark.parametrize(
    ("trick", "message"),
    [
        ("crash", "killed by SIGSEGV"),
        ("exit", "ended with 3"),
        ("hang", "took more than"),
    ],
)
def test_processes_that_end_badly(
    trick: str,
    message: str,
    metals: list[Frame],
    counting: Make,
    log: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = tmp_path / "labels.sqlite"
    timeout = None
    if trick == "hang":  # many times what a call takes here and now
        begin = time.monotonic()
        unlogged = counting(log=str(tmp_path / "other.log"))
        label_frames(metals[:1], unlogged, store=tmp_path / "one.sqlite", settings=LabelSettings())
        timeout = 5.0 + 5 * (time.monotonic() - begin)
    settings = LabelSettings(retries=2, timeout=timeout)
    oracle = counting(trick=trick)
    with caplog.at_level("INFO", logger="bayrace"):
        result = label_frames(metals[:2], oracle, store=store, settings=settings)
    check(metals[:2], result.frames)
    assert lines(log) == {"start": 3, "end": 2}
    (error,) = [text for text in caplog.messages if "tried again" in text]
    assert message in error


def test_nonsense_is_a_failure(metals: list[Frame], counting: Make, tmp_path: Path) -> None:
    result = label_frames(
        metals[:1],
        counting(),
        store=tmp_path / "labels.sqlite",
        settings=LabelSettings(retries=0, max_force=1e-3),
    )
    assert "above 0.001" in result.failures["metals.xyz, frame 0"]


def test_labels_of_two_methods_are_not_mixed(
    metals: list[Frame], counting: Make, tmp_path: Path
) -> None:
    store = tmp_path / "labels.sqlite"
    label_frames(metals[:1], counting(), store=store, settings=LabelSettings())
    with pytest.raises(DataError, match="holds labels by"):
        label_frames(
            metals[:1], AseOracle("ase.calculators.emt:EMT"), store=store, settings=LabelSettings()
        )


def test_other_files_are_refused(metals: list[Frame], counting: Make, tmp_path: Path) -> None:
    file = tmp_path / "labels.sqlite"
    file.write_text("no database " * 100, "utf-8")
    with pytest.raises(DataError, match="no file of labels"):
        label_frames(metals[:1], counting(), store=file, settings=LabelSettings())


def test_a_wrong_address(metals: list[Frame], counting: Make, tmp_path: Path) -> None:
    settings = LabelSettings(scheduler="nowhere")
    with pytest.raises(DataError, match="no dask scheduler answers"):
        label_frames(metals[:1], counting(), store=tmp_path / "labels.sqlite", settings=settings)


@pytest.mark.parametrize("change", [{"workers": 0}, {"retries": -1}, {"timeout": 0.0}])
def test_useless_settings_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(change))}="):
        LabelSettings(**change)


def test_processes_are_told_apart() -> None:
    here = Worker.here()
    assert here.alive()
    assert not here._replace(created=here.created - 100).alive()
    assert not here._replace(host="elsewhere").alive()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one clock")
def test_a_clock_that_goes_back_makes_nobody_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel moves the time of the boot with the clock of the day."""
    import psutil._pslinux

    here, boot = Worker.here(), psutil.boot_time()
    before = psutil.Process().create_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot - 3600.0)
    assert psutil.Process().create_time() < before - 3000  # so psutil has gone back
    assert here.alive()


def start(
    log: Path, store: Path, *scheduler: str, count: int, seconds: float
) -> AbstractContextManager[subprocess.Popen[str]]:
    calculator = f"{Path(__file__).with_name('counting.py')}:Counting"
    arguments = [calculator, str(log), str(store), str(count), str(seconds), *scheduler]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return running(["-c", SCRIPT, *arguments], **pipes)


def test_killed_again_and_again(log: Path, tmp_path: Path) -> None:
    """Each kill comes at a random moment between the first call and the end of the next few."""
    store, count = tmp_path / "labels.sqlite", 24
    random = np.random.default_rng(0)
    for _ in range(4):
        before = log.read_text("utf-8").count("end") if log.exists() else 0
        with start(log, store, count=count, seconds=0.3) as process:
            wait_for(lambda: log.exists() and log.read_text("utf-8").count("end") > before)  # noqa: B023
            time.sleep(random.uniform(0.0, 0.6))
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert log.read_text("utf-8").count("end") < count
    with start(log, store, count=count, seconds=0.3) as process:
        printed, error = process.communicate()
    assert printed.strip() == str(count), error
    names = Counter(log.read_text("utf-8").splitlines())
    assert set(names.values()) == {1}  # each structure began once and ended once
    assert lines(log) == {"start": count, "end": count}


def test_an_interrupted_run_does_not_wait_for_its_calls(log: Path, tmp_path: Path) -> None:
    with start(log, tmp_path / "labels.sqlite", count=6, seconds=600.0) as process:
        wait_for(lambda: log.exists() and lines(log)["start"] == 2)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert lines(log) == {"start": 2}


def test_calculations_that_died_with_the_run_are_repeated(
    metals: list[Frame], counting: Make, log: Path, tmp_path: Path
) -> None:
    store = LabelStore(tmp_path / "labels.sqlite")
    oracle = counting()
    store.prepare(oracle.method)
    (hash_,) = store.add(metals[:1])
    with subprocess.Popen(["true"]) as gone:
        store.start(hash_, Worker.here()._replace(process=gone.pid))
    result = label_frames(metals[:1], oracle, store=store.path, settings=LabelSettings())
    check(metals[:1], result.frames)


def test_a_real_cluster(
    metals: list[Frame], counting: Make, log: Path, tmp_path: Path, scheduler: str
) -> None:
    settings = LabelSettings(scheduler=scheduler, retries=20)
    result = label_frames(
        metals, counting(failing=0.3), store=tmp_path / "labels.sqlite", settings=settings
    )
    check(metals, result.frames)
    assert lines(log)["end"] == 10
    assert LabelStore(tmp_path / "labels.sqlite").calls() == lines(log)["start"]


def test_a_real_cluster_goes_on_without_us(log: Path, tmp_path: Path, scheduler: str) -> None:
    """Tasks that a killed run has left on the cluster are found again."""
    store, count = tmp_path / "labels.sqlite", 8
    with start(log, store, scheduler, count=count, seconds=0.4) as process:
        wait_for(lambda: log.exists() and log.read_text("utf-8").count("end") > 1)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    with start(log, store, scheduler, count=count, seconds=0.4) as process:
        printed, error = process.communicate()
    assert printed.strip() == str(count), error
    assert set(Counter(log.read_text("utf-8").splitlines()).values()) == {1}
    assert lines(log) == {"start": count, "end": count}
    assert LabelStore(store).calls() == count


def test_a_run_that_dies_as_it_records(
    metals: list[Frame],
    counting: Make,
    log: Path,
    tmp_path: Path,
    scheduler: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process that computed the label lives on in the cluster; nobody waits for its end."""
    store, settings = tmp_path / "labels.sqlite", LabelSettings(scheduler=scheduler)
    with monkeypatch.context() as patch:
        patch.setattr(label_store, "_end", dies)
        with pytest.raises(KeyboardInterrupt):
            label_frames(metals[:3], counting(), store=store, settings=settings)
    assert {row.state for row in LabelStore(store).rows().values()} == {"waiting"}
    result = label_frames(metals[:3], counting(), store=store, settings=settings)
    check(metals[:3], result.frames)
    assert lines(log) == {"start": 3, "end": 3}


def dies(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_cluster_without_workers(
    metals: list[Frame],
    counting: Make,
    tmp_path: Path,
    scheduler_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = LabelSettings(scheduler=address(scheduler_file))
    with ThreadPoolExecutor() as threads:
        result = threads.submit(
            label_frames, metals, counting(), store=tmp_path / "labels.sqlite", settings=settings
        )
        wait_for(lambda: any("no worker is there yet" in text for text in caplog.messages))
        with dask_worker(scheduler_file):
            check(metals, result.result().frames)


def test_memory_of_this_process_is_not_the_workers(
    metals: list[Frame], counting: Make, tmp_path: Path
) -> None:
    """A trained ensemble may fill it; labels are computed in other processes."""
    with dask_config.set({"distributed.worker.memory.pause": 1e-6}):
        result = label_frames(
            metals[:3],
            counting(seconds=0.3),
            store=tmp_path / "labels.sqlite",
            settings=LabelSettings(),
        )
    check(metals[:3], result.frames)


@pytest.mark.parametrize("workers", [1, 2])
def test_so_many_calls_at_a_time(
    workers: int, metals: list[Frame], counting: Make, log: Path, tmp_path: Path
) -> None:
    label_frames(
        metals[:6],
        counting(seconds=0.3),
        store=tmp_path / "labels.sqlite",
        settings=LabelSettings(workers=workers),
    )
    running = most = 0
    for line in log.read_text("utf-8").splitlines():
        running += 1 if line.startswith("start") else -1
        most = max(most, running)
    assert (running, most) == (0, workers)
