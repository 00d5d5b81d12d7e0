"""Batches of structures on disk, made by processes beside the training and ahead of it."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.data.feed_process import Builder, unpacked
from bayrace.data.frame import DataError

Pieces = tuple[GraphBatch, Labels]

_AHEAD = 8  # batches of every process that are asked for before they are needed
_WORD = 8  # bytes of a number


class Feed:
    """Processes that make batches; they end with `close`, or with us."""

    def __init__(self, job: dict[str, Any], *, workers: int) -> None:
        self.job, self.count = job, workers
        self.waited = 0.0  # seconds, in which there was no batch to train on
        self._workers: list[_Worker] = []

    def start(self) -> None:
        """Start the processes, if they are not running; they need a few seconds."""
        if not self._workers:
            self._workers = [_Worker(self.job) for _ in range(self.count)]

    def batches(self, requests: Iterable[Sequence[int]]) -> Iterator[Pieces | None]:
        """The batch of each request, in their order; None for an empty one."""
        if self.count == 0:
            yield from self._here(requests)
            return
        self.start()
        remaining, turn = iter(requests), 0
        asked: deque[_Worker | None] = deque()
        try:
            while True:
                while len(asked) < _AHEAD * self.count:
                    places = next(remaining, None)
                    if places is None:
                        break
                    worker = self._workers[turn % self.count] if len(places) else None
                    if worker is not None:
                        worker.ask(places)
                        turn += 1
                    asked.append(worker)
                if not asked:
                    return
                worker = asked.popleft()
                yield None if worker is None else unpacked(self._taken(worker))
        finally:
            if asked:  # ended before its end: answers that nobody takes
                self.close()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _taken(self, worker: _Worker) -> bytes:
        begin = time.monotonic()
        data = worker.answer()
        self.waited += time.monotonic() - begin
        return data

    def _here(self, requests: Iterable[Sequence[int]]) -> Iterator[Pieces | None]:
        builder = Builder(self.job)
        for places in requests:
            begin = time.monotonic()
            made = builder.batch(list(places)) if len(places) else None
            self.waited += time.monotonic() - begin
            yield made


class _Worker:
    """One process, and a thread that takes its answers from the pipe."""

    def __init__(self, job: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "bayrace.data.feed_process"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        self._answers: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._send(json.dumps(job).encode() + b"\n")
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, places: Sequence[int]) -> None:
        """Request a batch."""
        numbers = np.array([len(places), *places], dtype=np.int64)
        self._send(numbers.tobytes())

    def answer(self) -> bytes:
        """The next answer; DataError if it is a complaint, or if there will be none."""
        found = self._answers.get()
        if found is None:
            code = self._process.wait()
            raise DataError(
                f"the process that reads structures ended with code {code}; continue with "
                "--resume, or read in the training itself with data.workers=0"
            )
        length, data = found
        if length < 0:
            raise DataError(data.decode())
        return data

    def close(self) -> None:
        """End it; what it was about to say is lost."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` says so

    def _listen(self) -> None:
        source = self._process.stdout
        assert source is not None
        with source:
            while word := source.read(_WORD):
                length = int.from_bytes(word, sys.byteorder, signed=True)
                data = source.read(abs(length))
                if len(data) < abs(length):
                    break
                self._answers.put((length, data))
        self._answers.put(None)
