"""Where labels are computed: a dask cluster within this process, or a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bayrace.label import process as label_process
from bayrace.system.cluster import cluster


@contextmanager
def label_cluster(*, workers: int, scheduler: str | None) -> Iterator[Any]:
    """A client of a cluster whose calculations have processes of their own, which end with it."""
    if scheduler is not None:
        with cluster(workers=workers, scheduler=scheduler) as connected:
            yield connected
            connected.run(label_process.close_idle)
        return
    label_process.admit()
    with cluster(workers=workers, scheduler=None) as connected:
        try:
            yield connected
        finally:
            label_process.dismiss()
