"""Memory that programs work in: kept between runs, in large pages where the system has them.

A fresh block of megabytes costs a page fault for every 4 kB of it, each time it is asked for.
Blocks here go back to a pool when their owner is gone, and the next run takes them as they are.
"""

from __future__ import annotations

import ctypes
import mmap
from threading import Lock

_PAGE = 2**21  # bytes of a large page
_LARGEST = 2**30  # bytes of a block that is worth keeping
_KEPT = 4  # blocks


class Block:
    """A piece of memory; `address` is a multiple of 64. It returns to its pool when it is gone."""

    def __init__(self, pool: Pool, memory: mmap.mmap) -> None:
        self._pool, self._memory = pool, memory
        self.size = len(memory)
        self._view = ctypes.c_char.from_buffer(memory)
        start = ctypes.addressof(self._view)
        self.address = start + -start % _PAGE if self.size > 2 * _PAGE else start

    def __del__(self) -> None:
        del self._view
        self._pool.give_back(self._memory)


class Pool:
    """Blocks that are free."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        self._lock = Lock()

    def take(self, size: int) -> Block:
        """A block of at least `size` bytes."""
        with self._lock:
            fitting = [memory for memory in self._free if len(memory) >= size + _PAGE]
            if fitting:
                chosen = min(fitting, key=len)
                self._free = [memory for memory in self._free if memory is not chosen]
                return Block(self, chosen)
            self._free = self._free[-_KEPT + 1 :]  # too small ones go first
        whole = (
            size + size // 8
        ) // _PAGE * _PAGE + 2 * _PAGE  # graphs of a training vary a little
        memory = mmap.mmap(-1, whole)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return Block(self, memory)

    def give_back(self, memory: mmap.mmap) -> None:
        """Keep a block for the next run, unless it is huge."""
        if len(memory) <= _LARGEST:
            with self._lock:
                self._free.append(memory)
                self._free = self._free[-_KEPT:]
