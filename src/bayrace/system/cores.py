"""Which processor cores there are, and who works on which.

Processes that share a core, or that the system moves between cores, lose their caches; a member of
an ensemble that keeps to its own does not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from itertools import pairwise

_log = logging.getLogger(__name__)


def usable_cores() -> tuple[int, ...]:
    """Numbers of the cores this process may use, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def assign_cores(cores: Sequence[int], workers: int) -> tuple[tuple[int, ...], ...]:
    """The cores of each worker: neighbours, and each core once, while there are enough of them.

    With more workers than cores each has one, and some share it.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: at least 1 is needed")
    count = len(cores)
    if workers >= count:
        return tuple((cores[worker % count],) for worker in range(workers))
    bounds = [worker * count // workers for worker in range(workers + 1)]
    return tuple(tuple(cores[a:b]) for a, b in pairwise(bounds))


def pin(cores: Collection[int]) -> None:
    """Keep this process to `cores`, where the platform can; call before threads are started."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:  # some containers forbid it; the work goes on, only slower
        _log.warning("cannot keep to cores %s: %s", sorted(cores), error)
