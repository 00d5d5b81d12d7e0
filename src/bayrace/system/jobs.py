"""Work in processes side by side: started, watched, asked to end, and never left behind.

A job is a module of ours, `python -m MODULE`, that does one task. The task goes to its standard
input as JSON, with the cores it is to keep to; `bayrace.system.child` is the other end. It answers
with files, its exit code, and, where the code is FAILED, with a message on its standard output.

Processes are started anew, not forked: torch does not survive a fork. Executors of the standard
library, loky and dask keep processes for many small tasks; ours are few and long, save their work
when asked to end, keep to cores of their own and must end with us, which all three lack.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any, Literal

from bayrace.system.cores import assign_cores, usable_cores
from bayrace.system.process import signal_name, thread_limits

FINISHED, FAILED, INTERRUPTED = 0, 2, 130
"""Exit codes of a job."""

_log = logging.getLogger(__name__)
_POLL = 0.2  # seconds; whoever waits takes its time from those at work
_PATIENCE = 5.0  # seconds between asking processes to end and ending them
_SHOWN = 2000  # characters of an error


@dataclass(frozen=True)
class Job:
    """One task for a process of its own."""

    name: str  # in messages
    module: str  # of ours, run as a script
    task: Mapping[str, Any]  # JSON-able
    remedy: str = ""  # what to do if it was killed


@dataclass(frozen=True)
class Outcome:
    """How a job ended; `error` says why it failed."""

    state: Literal["finished", "failed", "interrupted"]
    error: str = ""


@dataclass(frozen=True)
class Placement:
    """How processes are spread over the machine."""

    slots: tuple[tuple[int, ...], ...]  # cores of each process; () leaves it to the system
    threads: int | None  # of each process; None leaves them as they are


@dataclass
class Standing:
    """What is known of the jobs, by their place; `run_jobs` keeps it up to date."""

    running: dict[int, int] = field(default_factory=dict)  # process ids
    outcomes: dict[int, Outcome] = field(default_factory=dict)


def run_jobs(
    jobs: Sequence[Job],
    *,
    placement: Placement,
    watch: Callable[[Standing], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    folder: str | None = None,
) -> Standing:
    """Do the jobs in their order, one per slot of the placement at a time, in `folder` or here.

    `watch` hears of the standing a few times a second. Once `stop` is true no job starts, and those
    at work are asked to save and end. Jobs that were never started have no outcome. However this
    ends, by an exception or by Ctrl-C, no process is left behind.
    """
    waiting, standing = deque(enumerate(jobs)), Standing()
    slots: list[_Process | None] = [None] * len(placement.slots)
    stopping = False
    try:
        while any(slots) or (waiting and not stopping):
            if not stopping and stop():
                stopping = True
                for busy in filter(None, slots):
                    busy.process.terminate()
            for slot, at_work in enumerate(slots):
                if at_work is not None and at_work.process.poll() is not None:
                    standing.outcomes[at_work.place] = at_work.outcome(stopping=stopping)
                    del standing.running[at_work.place]
                    slots[slot] = None
                if slots[slot] is None and waiting and not stopping:
                    started = _Process(
                        *waiting.popleft(), placement.slots[slot], placement.threads, folder
                    )
                    slots[slot] = started
                    standing.running[started.place] = started.process.pid
            watch(standing)
            time.sleep(_POLL)
    finally:
        _end([busy for busy in slots if busy is not None])
    return standing


def place(jobs: int, *, workers: int | None, threads: int | None, pin: bool = True) -> Placement:
    """As many processes as there are cores for them, each on its own where `pin` says so."""
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers}: at least 1 is needed")
    cores = usable_cores()
    count = min(jobs, workers or max(1, len(cores) // (threads or 1)))
    slots = assign_cores(cores, count) if pin else ((),) * count
    return Placement(slots, threads or max(1, len(cores) // count))


class _Process:
    """A process at work.

    It stays in our process group: Ctrl-C reaches it directly, and again as SIGTERM from us, of
    which it takes no second notice.
    """

    def __init__(
        self,
        place: int,
        job: Job,
        cores: tuple[int, ...],
        threads: int | None,
        folder: str | None,
    ) -> None:
        self.place, self.job = place, job
        self.answer, self.log = TemporaryFile(), TemporaryFile()  # noqa: SIM115  `close` does
        with TemporaryFile() as description:
            content = {"task": dict(job.task), "cores": cores, "parent": os.getpid()}
            description.write(json.dumps(content).encode())
            description.seek(0)
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", job.module],
                stdin=description,
                stdout=self.answer,
                stderr=self.log,
                cwd=folder,
                env=os.environ | ({} if threads is None else thread_limits(threads)),
            )

    def outcome(self, *, stopping: bool) -> Outcome:
        """What the ended process left behind."""
        code, answer, log = self.process.returncode, _text(self.answer), _text(self.log)
        self.close()
        if code == FAILED and answer:
            return Outcome("failed", answer)
        if log:
            _log.warning("%s: %s", self.job.name, log)
        if code == FINISHED:
            return Outcome("finished")
        remedy = f"; {self.job.remedy}" if self.job.remedy else ""
        if code in (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):
            if stopping:
                return Outcome("interrupted")
            return Outcome("failed", f"stopped by a signal{remedy}")
        if code < 0:
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            return Outcome("failed", f"killed by {signal_name(-code)}{hint}{remedy}")
        return Outcome("failed", log.splitlines()[-1] if log else f"ended with exit code {code}")

    def close(self) -> None:
        """Forget what it has said."""
        self.answer.close()
        self.log.close()


def _end(processes: Sequence[_Process]) -> None:
    """Ask all to end, then make them."""
    for each in processes:
        each.process.terminate()
    until = time.monotonic() + _PATIENCE
    for each in processes:
        try:
            each.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
        each.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip()[-_SHOWN:]
