"""Members in processes side by side, each on its own cores.

One thread a member, each on a core of its own, is the fast way on a CPU: eight members of the
preset small take 0.5 to 0.6 times the time of eight trainings on two cores. One vmapped step of
eight takes 0.8 times the time of eight steps for ethanol and 1.8 times for 3BPA, where the
intermediates fall out of the cache (benchmarks/members.py).
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any, Literal

from bayrace.config import Config, ConfigError, plain_values_of
from bayrace.config.build import train_settings
from bayrace.system.cores import assign_cores, usable_cores
from bayrace.system.exit_codes import FAILED, FINISHED, INTERRUPTED

_log = logging.getLogger(__name__)
_POLL = 0.2  # seconds; the parent takes its time from the members
_PATIENCE = 5.0  # seconds between asking a process to end and ending it
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """A member to train."""

    index: int
    config: Config
    resume: bool
    initial: str | None = None  # file of an ensemble, whose member `index` is trained further


@dataclass(frozen=True)
class Outcome:
    """How a member ended; `error` says why it failed."""

    state: Literal["finished", "failed", "interrupted"]
    error: str = ""


@dataclass(frozen=True)
class Placement:
    """How members are spread over the machine."""

    slots: tuple[tuple[int, ...], ...]  # cores of each worker; () leaves it to the system
    threads: int | None  # of each worker; None leaves them as they are


@dataclass
class Standing:
    """What is known of the members; `train_jobs` keeps it up to date."""

    running: dict[int, int] = field(default_factory=dict)  # process id by member
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # by member


def train_jobs(
    jobs: Sequence[Job],
    *,
    placement: Placement,
    watch: Callable[[Standing], None],
    stop: Callable[[], bool],
) -> Standing:
    """Train the members, one per worker of the placement at a time.

    `watch` hears of the standing a few times a second. Once `stop` is true no member starts, and
    those at work are asked to save and end. Jobs that were never started have no outcome.
    """
    waiting, standing = deque(jobs), Standing()
    workers: list[_Worker | None] = [None] * len(placement.slots)
    stopping = False
    try:
        while any(workers) or (waiting and not stopping):
            if not stopping and stop():
                stopping = True
                for busy in filter(None, workers):
                    busy.process.terminate()
            for slot, worker in enumerate(workers):
                if worker is not None and worker.process.poll() is not None:
                    standing.outcomes[worker.index] = worker.outcome(stopping=stopping)
                    del standing.running[worker.index]
                    workers[slot] = None
                if workers[slot] is None and waiting and not stopping:
                    workers[slot] = fresh = _Worker(
                        waiting.popleft(), placement.slots[slot], placement.threads
                    )
                    standing.running[fresh.index] = fresh.process.pid
            watch(standing)
            time.sleep(_POLL)
    finally:
        for busy in filter(None, workers):
            busy.end()
    return standing


def place_members(
    config: Config, *, members: int, workers: int | None, pin: bool = True
) -> Placement:
    """As many workers as there are cores for them; one on a GPU, where none is pinned."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers={workers}: at least 1 is needed")
    given, device = config.train.threads, train_settings(config).device
    if device != "cpu":
        if workers not in (None, 1):
            raise ConfigError(
                f"workers={workers}: members on {device} are trained one after another; "
                "leave workers out, or use train.device=cpu"
            )
        return Placement(((),), given)
    cores = usable_cores()
    count = min(members, workers or max(1, len(cores) // (given or 1)))
    slots = assign_cores(cores, count) if pin else ((),) * count
    return Placement(slots, given or max(1, len(cores) // count))


class _Worker:
    """A process at work on a member.

    It stays in our process group: Ctrl-C reaches it directly, and again as SIGTERM from us, of
    which it takes no second notice.
    """

    def __init__(self, job: Job, cores: tuple[int, ...], threads: int | None) -> None:
        self.index = job.index
        self.answer, self.log = TemporaryFile(), TemporaryFile()  # noqa: SIM115  `_text` closes
        pools = {} if threads is None else dict.fromkeys(_POOLS, str(threads))
        with TemporaryFile() as description:
            description.write(json.dumps(_describe(job, cores)).encode())
            description.seek(0)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bayrace.workflow.member_process"],
                stdin=description,
                stdout=self.answer,
                stderr=self.log,
                env=os.environ | pools,
            )

    def outcome(self, *, stopping: bool) -> Outcome:
        """What the ended process left behind."""
        code, answer, log = self.process.returncode, _text(self.answer), _text(self.log)
        if code == FAILED and answer:
            return Outcome("failed", answer)
        if log:
            _log.warning("member %d: %s", self.index, log)
        if code == FINISHED:
            return Outcome("finished")
        if code in (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):
            if stopping:
                return Outcome("interrupted")
            return Outcome("failed", "stopped by a signal; --resume continues it")
        if code < 0:
            return Outcome("failed", _killed(-code))
        return Outcome("failed", log.splitlines()[-1] if log else f"ended with exit code {code}")

    def end(self) -> None:
        """Ask the process to end, then make it."""
        self.process.terminate()
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answer.close()
        self.log.close()


def _describe(job: Job, cores: tuple[int, ...]) -> dict[str, Any]:
    return {
        "config": plain_values_of(job.config),
        "resume": job.resume,
        "initial": None if job.initial is None else [job.initial, job.index],
        "cores": cores,
        "parent": os.getpid(),
    }


def _text(file: IO[bytes]) -> str:
    """All of a file, which is closed."""
    with file:
        file.seek(0)
        return file.read().decode(errors="replace").strip()


def _killed(number: int) -> str:
    name = signal.Signals(number).name if number in signal.valid_signals() else str(number)
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}; --resume continues it from its last checkpoint"
