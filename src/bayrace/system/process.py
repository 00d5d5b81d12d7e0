"""What is set in a process of ours, how one that ended is told of, and how a family is ended.

Freed memory is kept, and garbage is sought rarely: a training step frees and asks for the same
blocks again and again. glibc hands large ones back to the system each time, and the page faults
that follow cost up to a tenth of a step here and half of one elsewhere. Python's collector, in
turn, walks over every object of torch thousands of times.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
_BLOCK = 32 * 2**20  # bytes: the largest threshold that glibc accepts
_KEPT = 2**30  # bytes at the top of the heap that are not handed back
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_OBJECTS = 20_000  # new objects between two searches for garbage


def tune_process() -> None:
    """Tune this process for steps that repeat; harmless where the C library is another."""
    gc.freeze()
    gc.set_threshold(_OBJECTS)
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has no mallopt
        return
    mallopt(_MMAP_THRESHOLD, _BLOCK)
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_TOP_PAD, _BLOCK)


def thread_limits(threads: int) -> dict[str, str]:
    """Variables of the environment of a process whose libraries are to use so many threads."""
    return dict.fromkeys(_POOLS, str(threads))


def signal_name(number: int) -> str:
    """What a signal is called."""
    return signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"


def kill_children(process: int) -> None:
    """End everything that a process has started; the process itself is left."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
