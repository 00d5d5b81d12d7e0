"""Label many structures in parallel on dask.distributed, and never pay for a label twice.

By default a cluster is embedded in this process: as many workers as asked for, each of one thread,
which hands its calculations to a process of its own (see `label_process`). With the address of a
scheduler the same tasks go to a real cluster. Results are kept in a `LabelStore` as they come.

Killed at any moment and run again, it goes on: finished labels are in the store; calculations that
outlived the kill are waited for, not repeated (embedded: their processes; on a cluster: tasks
published under the hash of their structure).
"""

from __future__ import annotations

import fcntl
import logging
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt

from bayrace.data.frame import DataError, Frame
from bayrace.label import process as label_process
from bayrace.label.cluster import label_cluster
from bayrace.label.oracle import Oracle
from bayrace.label.process import Outcome, Task
from bayrace.label.store import LabelStore, Row, bare

_log = logging.getLogger(__name__)
_POLL = 0.2  # s between looks at calculations that an earlier run has left


@dataclass(frozen=True)
class LabelSettings:
    """How labels are computed."""

    workers: Annotated[int, Ge(1)] = 1
    """Calculations at a time, on this machine."""
    scheduler: str | None = None
    """Address of a dask scheduler, such as tcp://10.0.0.1:8786; null: on this machine."""
    threads: Annotated[int, Ge(1)] = 1
    """Threads of each calculation."""
    retries: Annotated[int, Ge(0)] = 2
    """Further calls for a structure whose calculation failed."""
    timeout: Annotated[float, Gt(0)] | None = None
    """Longest time of one calculation: 30m, 2h, seconds; null: no limit."""
    max_force: Annotated[float, Gt(0)] = 100.0
    """A larger force is taken for a failure, eV/Å."""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        for name, least in (("workers", 1), ("threads", 1), ("retries", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least {least}")
        for name in ("timeout", "max_force"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value}: must be above 0")


class Progress(NamedTuple):
    """How far it is, in structures."""

    done: int
    failed: int  # for good
    total: int
    calls: int  # that ended in this run
    retried: int  # of them, those that failed and are tried again


@dataclass(frozen=True)
class Labelling:
    """What came of it."""

    frames: list[Frame | None]  # labelled, in the order given; None where it failed
    failures: dict[str, str] = field(default_factory=dict)  # last error by "file, frame n"

    @property
    def labelled(self) -> list[Frame]:
        """Those that have labels."""
        return [frame for frame in self.frames if frame is not None]


def label_frames(
    frames: Sequence[Frame],
    oracle: Oracle,
    *,
    store: str | Path,
    settings: LabelSettings,
    progress: Callable[[Progress], None] | None = None,
) -> Labelling:
    """Label frames; those that `store` has labels of are not computed again.

    Equal geometries are computed once. A structure that failed is tried again while it has failed
    no more than `settings.retries` times, over all runs. Only one process may use a store at once.
    """
    labels = LabelStore(store)
    with _locked(labels.path):
        labels.prepare(oracle.method)
        hashes = labels.add(frames)
        unique = dict(zip(hashes, frames, strict=True))
        run = _Run(labels, oracle, settings, unique, progress)
        if run.unfinished():
            with label_cluster(workers=settings.workers, scheduler=settings.scheduler) as client:
                run.compute_all(client)
        rows = labels.rows()
    return Labelling(
        labels.labelled(frames),
        {
            frame.origin: rows[hash_].error
            for hash_, frame in zip(hashes, frames, strict=True)
            if rows[hash_].state == "failed"
        },
    )


class _Run:
    """One call of `label_frames`."""

    def __init__(
        self,
        store: LabelStore,
        oracle: Oracle,
        settings: LabelSettings,
        frames: dict[str, Frame],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.store, self.oracle, self.settings = store, oracle, settings
        self.frames, self.progress = frames, progress
        self.embedded = settings.scheduler is None
        self.tries: dict[str, int] = {}
        self.calls = self.retried = self.done = self.failed = 0
        self.waiting: list[str] = []
        self.adopted: dict[str, Row] = {}
        rows = store.rows()
        for hash_ in frames:
            self._place(hash_, rows[hash_])

    def unfinished(self) -> bool:
        """Whether there is anything to compute or to wait for."""
        return bool(self.waiting or self.adopted)

    def compute_all(self, client: Any) -> None:
        """Compute everything that is waiting, and wait for what earlier runs have left."""
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        pending: dict[str, Any] = {}
        published = () if self.embedded else client.list_datasets()
        self._tell()
        while self.waiting or pending or self.adopted:
            for hash_ in self.waiting:
                future = self._submit(client, hash_, published)
                pending[hash_] = future
                future.add_done_callback(lambda future, hash_=hash_: ended.put((hash_, future)))
            self.waiting = []
            try:
                hash_, future = ended.get(timeout=_POLL if self.adopted else None)
            except queue.Empty:
                self._look_after()
                continue
            del pending[hash_]
            self._record(hash_, _result(future, self.frames[hash_]))
            if not self.embedded:
                client.unpublish_dataset(_name(hash_, self.tries[hash_] - 1))
            self._look_after()

    def _place(self, hash_: str, row: Row) -> None:
        """Decide what is to be done with a structure."""
        self.tries[hash_] = row.tries
        if row.state == "done":
            self.done += 1
        elif row.state == "running" and row.worker is not None and row.worker.alive():
            self.adopted[hash_] = row
        elif row.state == "failed" and row.tries > self.settings.retries:
            self.failed += 1
        else:
            self.waiting.append(hash_)

    def _submit(self, client: Any, hash_: str, published: Sequence[str]) -> Any:
        name = _name(hash_, self.tries[hash_])
        if name in published:
            return client.get_dataset(name)
        task = Task(
            oracle=self.oracle,
            frame=bare(self.frames[hash_]),
            hash=hash_,
            store=str(self.store.path.resolve()) if self.embedded else None,
            timeout=self.settings.timeout,
            max_force=self.settings.max_force,
            threads=self.settings.threads,
        )
        future = client.submit(label_process.perform, task, key=name, pure=False)
        if not self.embedded:  # it stays there if we go
            client.publish_dataset(future, name=name, override=True)
        return future

    def _record(self, hash_: str, outcome: Outcome) -> None:
        """Store what the process could not, and decide whether to try again."""
        self.calls += 1
        self.tries[hash_] += 1
        if not outcome.stored:
            # Start and end at once: a killed run must not leave "running" behind, which would make
            # the next one wait for the end of a process that the cluster keeps for more tasks.
            worker = None if self.embedded else outcome.worker
            seconds = outcome.seconds
            if outcome.label is None:
                self.store.fail(hash_, outcome.error, seconds=seconds, worker=worker)
            else:
                self.store.finish(hash_, outcome.label, seconds=seconds, worker=worker)
        if outcome.label is not None:
            self.done += 1
        elif self.tries[hash_] <= self.settings.retries:
            _log.info("tried again: %s", outcome.error)
            self.retried += 1
            self.waiting.append(hash_)
        else:
            _log.warning("%s", outcome.error)
            self.failed += 1
        self._tell()

    def _look_after(self) -> None:
        """See what became of calculations that an earlier run has left."""
        gone = [
            hash_
            for hash_, row in self.adopted.items()
            if row.worker is None or not row.worker.alive()
        ]
        if not gone:
            return
        rows = self.store.rows()  # after their end, so that all they have stored is there
        for hash_ in gone:
            del self.adopted[hash_]
            self._place(hash_, rows[hash_])
        self._tell()

    def _tell(self) -> None:
        if self.progress is not None:
            total = len(self.frames)
            self.progress(Progress(self.done, self.failed, total, self.calls, self.retried))


def _result(future: Any, frame: Frame) -> Outcome:
    """The outcome of a task, or of the worker that died with it."""
    if future.status == "finished":
        outcome: Outcome = future.result()
        return outcome
    reason = future.exception() if future.status == "error" else future.status
    error = f"{frame.origin}: the worker failed ({type(reason).__name__}: {reason})"
    return Outcome(None, error, 0.0, None, stored=False)


def _name(hash_: str, tries: int) -> str:
    return f"bayrace-label-{hash_}-{tries}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from labelling into the same store."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as file:
        begin = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() - begin > 1.0:
                    raise DataError(
                        f"{path}: another process is labelling with it; wait for its end, or use "
                        "another file"
                    ) from None
                time.sleep(0.1)
        yield
