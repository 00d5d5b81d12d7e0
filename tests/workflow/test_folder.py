"""Two processes never work in one folder, and never share a temporary file."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import bayrace
from bayrace.config import changed, make_config
from bayrace.core.files import remove_temporaries
from bayrace.data.embedded import embedded
from bayrace.data.frame import DataError
from bayrace.train.callbacks import Callbacks
from bayrace.train.checkpoint import write_atomically
from bayrace.workflow import train as run
from bayrace.workflow.ensemble import train_members
from bayrace.workflow.folder import LOCK, locked

HOLD = """
import sys
from pathlib import Path
from bayrace.workflow.folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def held(tmp_path: Path):
    """A folder in which another process works, and that process."""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline().strip() == "held"
        yield folder, process
        process.kill()


def config(folder: Path):
    data = {"train": f"{embedded('ethanol-train')}@:4", "valid": 1}
    model = {"preset": "tiny", "layers": 1, "hidden": "4x0e+4x1o+4x2e", "features": 4}
    train = {"max_epochs": 1, "device": "cpu"}
    return make_config({"output": str(folder), "data": data, "model": model, "train": train})


def test_trainings_keep_out_of_a_folder_in_use(held) -> None:
    folder, _ = held
    with pytest.raises(DataError, match="another process works in it"):
        run.train(config(folder), overwrite=True)
    with pytest.raises(DataError, match="another process works in it"):
        train_members(config(folder), members=2, overwrite=True)
    assert [path.name for path in folder.iterdir()] == [LOCK]


def test_a_killed_process_leaves_no_lock(held) -> None:
    folder, process = held
    process.kill()
    process.wait()
    with locked(folder):
        assert (folder / LOCK).exists()
    assert not (folder / LOCK).exists()


def test_patience_waits_for_the_end(held) -> None:
    folder, process = held
    entered = threading.Event()

    def wait() -> None:
        with locked(folder, patience=math.inf):
            entered.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not entered.is_set()
    process.stdin.write("\n")
    process.stdin.flush()
    waiting.join()
    assert entered.is_set()


FLICKER = """
import os, sys
print("running", flush=True)
while True:
    for change in (os.mkdir, os.rmdir):
        try:
            change(sys.argv[1])
        except OSError:
            pass
"""


def test_a_folder_that_comes_and_goes_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", FLICKER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().strip() == "running"
        try:
            for _ in range(500):
                with suppress(DataError), locked(folder):
                    pass
        finally:
            process.kill()


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(OSError, match="run"), locked(tmp_path / "run", patience=math.inf):
        pass


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc")
def test_a_folder_that_cannot_be_made_is_not_in_use() -> None:
    with pytest.raises(OSError, match="/proc/run"), locked(Path("/proc/run"), patience=math.inf):
        pass


def test_a_folder_made_for_the_lock_alone_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "new"):
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()


def test_a_training_that_fails_early_can_be_started_again(tmp_path: Path) -> None:
    broken = config(tmp_path / "run").model_dump(mode="json")
    broken["data"]["train"] = str(tmp_path / "missing.xyz")
    for _ in range(2):
        with pytest.raises(DataError, match="no such file"):
            run.train(make_config(broken))


def test_writers_do_not_share_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    sync = os.fsync

    def watch(handle: int) -> None:
        seen.extend(path.name for path in tmp_path.glob(".*.tmp"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", watch)
    for _ in range(2):
        write_atomically(tmp_path / "last.ckpt", b"x")
    assert len(set(seen)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "last.ckpt").stat().st_mode & 0o777 == 0o666 & ~mask


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    names = (".last.ckpt.tmp", ".last.ckpt.123-abcd.tmp", ".best.ckpt.1-2.tmp", "last.ckpt")
    for name in names:
        (tmp_path / name).write_text("")
    remove_temporaries(tmp_path / "last.ckpt")
    assert {path.name for path in tmp_path.iterdir()} == {".best.ckpt.1-2.tmp", "last.ckpt"}


def test_a_folder_that_vanishes_before_the_lock_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process before removes the folder that it made, between our making it and our lock."""
    make, vanished = Path.mkdir, []

    def vanish(path: Path, *arguments: object, **options: object) -> None:
        make(path, *arguments, **options)
        if not vanished:
            vanished.append(path)
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", vanish)
    with locked(tmp_path / "run", patience=math.inf):
        assert (tmp_path / "run" / LOCK).exists()
    assert vanished == [tmp_path / "run"]


def test_a_copied_folder_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Resumed, it writes nothing into the one it was copied from, and comes to the same."""
    looks = iter([False] * 4 + [True] * 1000)
    stopping = Callbacks(stop=lambda: next(looks))
    first = tmp_path / "first"
    long = changed(config(first), train=changed(config(first).train, max_epochs=4, batch_size=2))
    assert run.train(long, callbacks=stopping).fit.reason == "interrupted"
    second = Path(shutil.copytree(first, tmp_path / "second"))
    before = {path: path.read_bytes() for path in first.iterdir()}
    copied = bayrace.train(second, resume=True)
    assert {path: path.read_bytes() for path in first.iterdir()} == before
    original = bayrace.train(first, resume=True)
    for name, value in original.posterior.tensors().items():
        assert torch.equal(value, copied.posterior.tensors()[name]), name
