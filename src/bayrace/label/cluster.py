"""Where labels are computed: a dask cluster within this process, or a real one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bayrace.data.frame import DataError
from bayrace.label import process as label_process
from bayrace.label.oracle import OracleError

_log = logging.getLogger(__name__)


@contextmanager
def cluster(*, workers: int, scheduler: str | None) -> Iterator[Any]:
    """A client of a cluster of so many workers in this process, or of the one at an address."""
    try:
        import distributed
    except ImportError as error:
        raise OracleError(
            f"labelling needs dask.distributed ({error}); pip install 'bayrace[cluster]'"
        ) from error
    if scheduler is not None:
        with _connected(distributed.Client, scheduler) as connected:
            if not connected.nthreads():
                _log.warning("%s: no worker is there yet; waiting for one", scheduler)
            yield connected
            connected.run(label_process.close_idle)
        return
    make: Any = distributed.LocalCluster
    client: Any = distributed.Client
    label_process.admit()
    with (
        _quiet(),
        make(
            n_workers=workers,
            threads_per_worker=1,
            processes=False,  # each worker's calculations have processes of their own
            memory_limit=0,  # near a limit, dask would stop for ever: the memory is not its own
            # Workers talk within the process, but their pages would listen to the whole network.
            dashboard_address="127.0.0.1:0",  # None takes the port 8787 all the same
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=logging.ERROR,
        ) as local,
        client(local) as connected,
    ):
        try:
            yield connected
        finally:
            label_process.dismiss()


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
