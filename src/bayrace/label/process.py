"""Calculations in processes of their own, which outlive whoever asked for them.

An oracle may crash, hang, or leak; here that costs one process and one recorded error. If the
process that asked is killed, the calculation goes on, stores its label, and ends: nothing that was
paid for is lost. `python -m bayrace.label.process` is such a process; it takes tasks from
one pipe and answers through another until the first is closed. `bayrace.system.jobs` runs all
other processes, which must not outlive us.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from bayrace.data.frame import Frame
from bayrace.label.oracle import Oracle, OracleError, check_label
from bayrace.label.store import LabelStore, Worker
from bayrace.system.process import kill_children, signal_name, thread_limits

_GRACE = 5.0  # s after the time-out until a process that nobody watches ends itself
_SHOWN = 400  # characters of a process's last words


@dataclass(frozen=True)
class Task:
    """One call of an oracle."""

    oracle: Oracle
    frame: Frame
    hash: str
    store: str | None  # file for the label; None: only the answer carries it
    timeout: float | None  # s
    max_force: float  # eV/Å
    threads: int


class Outcome(NamedTuple):
    """What came of a task."""

    label: Frame | None
    error: str  # empty where there is a label
    seconds: float
    worker: Worker | None
    stored: bool  # whether the store knows already


def perform(task: Task) -> Outcome:
    """Run a task in an idle process of this one, or in a new one; waits for the end."""
    interrupted = Outcome(None, f"{task.frame.origin}: interrupted", 0.0, None, stored=False)
    if _dismissed.is_set():
        return interrupted
    process = _idle.pop() if _idle else _Process(task.threads)
    if process.threads != task.threads:
        process.close()
        process = _Process(task.threads)
    if _dismissed.is_set():  # while it started
        process.close()
        return interrupted
    outcome = process.run(task)
    if process.usable:
        _idle.append(process)
    return outcome


def close_idle() -> None:
    """End the processes that wait for tasks."""
    while _idle:
        _idle.pop().close()


def admit() -> None:
    """Take tasks, again."""
    _dismissed.clear()


def dismiss() -> None:
    """End all processes at once, those at work included, and take no more tasks."""
    _dismissed.set()
    for process in tuple(_all):  # other threads take theirs out
        process.end()
    close_idle()


class _Process:
    """A process that labels, seen from the one that asks."""

    def __init__(self, threads: int) -> None:
        self.threads, self.usable = threads, True
        self.words = TemporaryFile()  # noqa: SIM115 - closed with the process
        theirs, ours = os.pipe()
        answer, say = os.pipe()
        self.tasks, self.answers = Connection(ours, readable=False), Connection(answer)
        self.process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-P", "-m", "bayrace.label.process", str(theirs), str(say)],
            pass_fds=(theirs, say),
            stdin=subprocess.DEVNULL,
            stdout=self.words,
            stderr=self.words,
            env=os.environ | thread_limits(threads),
            start_new_session=True,  # signals to our group do not reach it
        )
        os.close(theirs)
        os.close(say)
        _all.append(self)
        try:
            self.answers.recv()  # it is up
        except EOFError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE)
            raise OracleError(f"a process for labels {self.ended()}") from None

    def run(self, task: Task) -> Outcome:
        """Send a task and wait for what comes of it."""
        import cloudpickle

        begin = time.monotonic()
        try:
            self.tasks.send_bytes(cloudpickle.dumps(task))
            if self.answers.poll(task.timeout):
                answer: Outcome = self.answers.recv()
                return answer
            self.ended()
            error = (
                f"{task.frame.origin}: took more than {task.timeout:g} s; raise the time-out, or "
                "leave the structure out"
            )
        except (EOFError, OSError):  # it is gone, or about to be; its own exit code tells why
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE)
            error = f"{task.frame.origin}: the process {self.ended()}"
        worker = Worker.here()
        return Outcome(None, error, time.monotonic() - begin, worker, stored=False)

    def close(self) -> None:
        """Let it end by itself, once it has nothing more to do."""
        self.usable = False
        for pipe in (self.tasks, self.answers):
            pipe.close()
        self.process.wait()
        self.words.close()
        with contextlib.suppress(ValueError):
            _all.remove(self)

    def end(self) -> None:
        """End it, and everything it has started; whoever waits for its answer hears of it."""
        kill_children(self.process.pid)
        self.process.kill()
        self.process.wait()

    def ended(self) -> str:
        """How it ended, and its last words."""
        self.end()
        code = self.process.returncode
        self.words.seek(0)
        said = self.words.read().decode(errors="replace").strip()[-_SHOWN:]
        self.close()
        number = -code if code is not None else 0
        how = f"was killed by {signal_name(number)}" if number > 0 else f"ended with {code}"
        return f"{how}: {said}" if said else how


_idle: deque[_Process] = deque()
_all: list[_Process] = []
_dismissed = threading.Event()


def main(arguments: list[str]) -> None:
    """Answer tasks until nobody asks any more."""
    tasks, answers = Connection(int(arguments[0])), Connection(int(arguments[1]), readable=False)
    import cloudpickle

    here = Worker.here()
    answers.send(None)
    while True:
        try:
            task: Task = cloudpickle.loads(tasks.recv_bytes())
        except EOFError:
            return
        outcome = _answer(task, here)
        try:
            answers.send(outcome)
        except BrokenPipeError:  # whoever asked is gone; the store has it
            return


def _answer(task: Task, here: Worker) -> Outcome:
    store = None if task.store is None else LabelStore(task.store)
    if store is not None:
        store.start(task.hash, here)
    begin = time.monotonic()
    label, error = None, ""
    if task.timeout is not None:  # ends us even in the depths of a library
        signal.setitimer(signal.ITIMER_REAL, task.timeout + _GRACE)
    try:
        label = task.oracle.label(task.frame)
        check_label(label, max_force=task.max_force)
    except Exception as failure:  # whatever it is, it is recorded
        label, error = None, _message(failure, task.frame)
    signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.monotonic() - begin
    if store is not None:
        if label is None:
            store.fail(task.hash, error, seconds=seconds)
        else:
            store.finish(task.hash, label, seconds=seconds)
    return Outcome(label, error, seconds, here, stored=store is not None)


def _message(error: Exception, frame: Frame) -> str:
    text = str(error)
    expected: Any = ValueError, OSError
    if isinstance(error, expected) and text:
        return text
    return f"{frame.origin}: {type(error).__name__}: {text}"


if __name__ == "__main__":
    from bayrace.label import (
        process as label_process,  # so that answers are pickled under this name
    )

    label_process.main(sys.argv[1:])
