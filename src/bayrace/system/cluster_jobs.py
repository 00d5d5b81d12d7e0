"""Jobs of `bayrace.system.jobs` on the workers of a dask cluster.

Each is a process of its own beside the worker that has its task: it keeps its memory and its
threads to itself, and is asked to save and end as on one machine. Where a worker dies, its process
ends too, and dask gives the task to another worker. Jobs start in the folder of whoever asked, so
that relative names mean the same; it must be on a disk that all workers see.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bayrace.system.jobs import Job, Outcome, Placement, Standing, run_jobs

_POLL = 0.5  # s; every look asks the scheduler
_LOGS = "; the scheduler's log and those of its workers tell more"


def run_on_cluster(
    client: Any,
    jobs: Sequence[Job],
    *,
    folder: Path,
    threads: int | None,
    watch: Callable[[Standing], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Standing:
    """As `run_jobs` in `folder`, with as many jobs at a time as the workers have threads.

    The process ids in the standing are those of the workers' machines.
    """
    import distributed

    name = f"bayrace-{uuid.uuid4().hex}"
    event: Any = distributed.Event
    enough = event(name, client=client)
    futures = {
        index: client.submit(_do, job, index, name, threads, str(folder), key=_key(name, index))
        for index, job in enumerate(jobs)
    }
    standing, stopping = Standing(), False
    try:
        while futures:
            if not stopping and stop():
                stopping = True
                enough.set()
            _hear(client, name, standing)
            for index, future in list(futures.items()):
                if future.done():
                    standing.running.pop(index, None)
                    outcome = _outcome(future)
                    standing.outcomes |= {} if outcome is None else {index: outcome}
                    del futures[index]
                elif stopping and index not in standing.running:
                    future.cancel()
                    del futures[index]
            watch(standing)
            time.sleep(_POLL if futures else 0.0)
    finally:
        enough.set()
        client.cancel(list(futures.values()))
    return standing


def _key(name: str, index: int) -> str:
    return f"{name}-{index}"


def _hear(client: Any, name: str, standing: Standing) -> None:
    """Take note of the processes that were started, by their latest place."""
    for _, said in client.get_events(name):
        if said["index"] not in standing.outcomes:
            standing.running[said["index"]] = said["pid"]


def _outcome(future: Any) -> Outcome | None:
    import distributed

    try:
        found: Outcome | None = future.result()
    except distributed.KilledWorker:
        return Outcome("failed", f"its worker died, again and again{_LOGS}")
    except (Exception, distributed.CancelledError) as error:
        return Outcome("failed", f"{type(error).__name__}: {error}{_LOGS}")
    return found


def _do(job: Job, index: int, name: str, threads: int | None, folder: str) -> Outcome | None:
    """What a worker does; None where it was not to begin any more."""
    import distributed

    event: Any = distributed.Event
    worker, enough = distributed.get_worker(), event(name)
    if not Path(folder).is_dir():
        host = os.uname().nodename
        return Outcome(
            "failed",
            f"{folder}: no such folder on {host}; work in one on a disk that all workers see",
        )

    def unwanted() -> bool:
        task = worker.state.tasks.get(_key(name, index))  # gone with the client that wanted it
        return task is None or task.state == "cancelled" or bool(enough.is_set())

    told: set[int] = set()

    def tell(standing: Standing) -> None:
        for pid in set(standing.running.values()) - told:
            told.add(pid)
            worker.log_event(name, {"index": index, "pid": pid})

    alone = Placement(((),), threads)
    standing = run_jobs([job], placement=alone, watch=tell, stop=unwanted, folder=folder)
    return standing.outcomes.get(0)
