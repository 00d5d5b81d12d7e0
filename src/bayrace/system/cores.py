"""Which processor cores there are, and who works on which.

Processes that share a core, or that the system moves between cores, lose their caches; a member of
an ensemble that keeps to its own does not.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

_log = logging.getLogger(__name__)

_STATISTICS = Path("/proc/stat")
_LOOK = 0.1  # s
_SHARED = 0.5  # cores that others use, from which threads should not spin
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # what OpenMP reads once, when torch is loaded


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


def share_cores() -> None:
    """Let threads sleep while they wait, if others use our cores too; call before torch is loaded.

    Threads of OpenMP spin until all have come. One whose core is taken comes late, and the others
    meanwhile take the cores that it waits for: two threads on two busy cores made 7 steps in the
    time of 390. Where the cores are free spinning is right, and what the user has set stays.
    """
    told = any(name in os.environ for name in _WAITING)
    if not told and "torch" not in sys.modules and busy_cores() > _SHARED:
        os.environ[_WAITING[0]] = "PASSIVE"


def busy_cores() -> float:
    """How many of our cores are at work just now; 0 where the platform does not tell."""
    before = _ticks()
    time.sleep(_LOOK if before else 0.0)
    after = _ticks()
    spent = [
        (after[core][0] - idle, after[core][1] - all_) for core, (idle, all_) in before.items()
    ]
    return sum(1 - idle / every for idle, every in spent if every > 0)


def _ticks() -> dict[int, tuple[int, int]]:
    """Ticks of each of our cores since the system started: idle ones, and all."""
    try:
        lines = _STATISTICS.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    counts = {}
    for line in lines:
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in usable_cores():
            ticks = [int(number) for number in numbers[:8]]  # guests are counted in the first two
            counts[int(name[3:])] = (ticks[3] + ticks[4], sum(ticks))
    return counts
