"""A dask cluster: embedded in this process, in processes beside it, or a real one at an address."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from bayrace.data.frame import DataError

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)
_AHEAD = 3  # pieces under way for each thread of a worker


@contextmanager
def cluster(*, workers: int, scheduler: str | None, processes: bool = False) -> Iterator[Any]:
    """A client of a cluster of so many workers on this machine, or of the one at an address.

    Workers of this machine are threads of this process, or `processes` of one thread each, which
    end with it. Nobody else can reach them.
    """
    try:
        import distributed
    except ImportError as error:
        raise DataError(
            f"this needs dask.distributed ({error}); pip install 'bayrace[cluster]'"
        ) from error
    if scheduler is not None:
        with _connected(distributed.Client, scheduler) as connected:
            if not connected.nthreads():
                _log.warning("%s: no worker is there yet; waiting for one", scheduler)
            yield connected
        return
    make: Any = distributed.LocalCluster
    client: Any = distributed.Client
    with (
        _quiet(),
        make(
            n_workers=workers,
            threads_per_worker=1,
            processes=processes,
            memory_limit=0,  # near a limit, dask would stop for ever: the memory is not its own
            # Workers talk within the machine, but their pages would listen to the whole network.
            dashboard_address="127.0.0.1:0",  # None takes the port 8787 all the same
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=logging.ERROR,
        ) as local,
        client(local) as connected,
    ):
        yield connected


def in_order(
    client: Any, function: Callable[..., Result], pieces: Iterable[Piece], *shared: Any
) -> Iterator[tuple[Piece, Result]]:
    """`function(piece, *shared)` of every piece, computed by the workers, in the order of pieces.

    No more pieces are read than keep the workers busy, so that there may be any number of them.
    What a function raises is raised here. Where a worker dies, others do its work.
    """
    waiting: deque[tuple[Piece, Any]] = deque()
    # As results of a task, not scattered: what is lost with a worker is then made again.
    common = [client.submit(_same, value, pure=False) for value in shared]
    try:
        for piece in pieces:
            waiting.append((piece, client.submit(function, piece, *common, pure=False)))
            if len(waiting) >= _AHEAD * max(1, sum(client.nthreads().values())):
                yield _ended(*waiting.popleft())
        while waiting:
            yield _ended(*waiting.popleft())
    finally:
        client.cancel([*common, *(future for _, future in waiting)])


def _same(value: Any) -> Any:
    return value


def _ended(piece: Piece, future: Any) -> tuple[Piece, Any]:
    import distributed

    try:
        return piece, future.result()
    except distributed.KilledWorker as error:
        raise DataError(
            f"workers died again and again over the same task ({error}); look at their logs: they "
            "may lack memory"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Only errors of dask's own cluster are told; it has a line for each step of everything."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _connected(client: Any, address: str) -> Iterator[Any]:
    try:
        connected = client(address, timeout=20)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{address}: no dask scheduler answers there ({error}); start one with `dask "
            "scheduler` and `dask worker`, or leave the address out to work on this machine"
        ) from error
    with connected:
        yield connected
