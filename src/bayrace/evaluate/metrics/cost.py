"""What a computation costs: times of several in turns, and the memory of one at its peak."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

Array = NDArray[np.float64]
Call = Callable[[], object]


def interleaved_times(
    calls: Sequence[Call], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> Array:
    """Seconds (rounds, calls); every round does each once, so that a busy machine slows all.

    One round before is not timed. `clock` may be that of the processor, `time.process_time`.
    """
    times = np.zeros((rounds + 1, len(calls)))
    for row in times:
        for place, call in enumerate(calls):
            _synchronise()
            start = clock()
            call()
            _synchronise()
            row[place] = clock() - start
    return times[1:]


def relative_times(times: Array) -> Array:
    """The least time of each call over that of the first, (calls,).

    Other work on the machine only ever adds, so the least is the nearest to the cost itself.
    """
    least = times.min(axis=0)
    return np.asarray(least / least[0])


def peak_memory(call: Call, *, device: torch.device) -> int:
    """Bytes that torch holds on a device at most during a call, beyond what it held before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    changes = [
        (event.start_ns(), event.nbytes())
        for event in (results.events() if results is not None else [])
        if event.name() == "[memory]"
    ]
    ordered = [change for _, change in sorted(changes, key=lambda pair: pair[0])]
    return int(max(np.cumsum(ordered), default=0))


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def _silent() -> Iterator[None]:
    """The profiler announces itself on the file descriptor of stderr; keep that from users."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
