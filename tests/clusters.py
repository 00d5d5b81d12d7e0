"""A real dask cluster: a scheduler and its workers in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def running(arguments: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A Python process that does not outlive the block, whatever happens there."""
    with subprocess.Popen([sys.executable, *arguments], text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], bool]) -> None:
    """However long it takes on a busy machine; pytest's own limit names what hangs."""
    while not condition():
        time.sleep(0.01)


def dask(tool: str, file: Path, *options: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A scheduler, or a worker of the scheduler that has written the file."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": file.parent}
    module = f"distributed.cli.dask_{tool}"
    return running(["-m", module, "--scheduler-file", str(file), *options], **quiet)


def dask_worker(file: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    return dask("worker", file, "--nthreads", "1", "--no-nanny")


@pytest.fixture
def scheduler_file(tmp_path: Path) -> Iterator[Path]:
    """A scheduler in a process of its own."""
    file = tmp_path / "scheduler.json"
    with dask("scheduler", file, "--port", "0", "--no-dashboard"):
        wait_for(lambda: file.exists() and file.read_text("utf-8").endswith("}"))
        yield file


@pytest.fixture
def scheduler(scheduler_file: Path) -> Iterator[str]:
    """Its address; it has one worker."""
    with dask_worker(scheduler_file):
        yield address(scheduler_file)


def address(scheduler_file: Path) -> str:
    found: str = json.loads(scheduler_file.read_text("utf-8"))["address"]
    return found
