"""Rows of numbers that come a few at a time, in one array that is never held twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_FIRST = 1024  # rows there is room for at the beginning


class Rows:
    """Grows in place: a long list of parts and their union would take the memory twice."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._room: NDArray[Any] | None = None
        self._count = 0
        self._missing = False

    def add(self, part: NDArray[Any] | None) -> None:
        """Append rows (k, ...); None, once, means that there are none of this kind."""
        if part is None or self._missing:
            self._room, self._missing = None, True
            return
        if self._room is None:
            self._room = np.empty((max(_FIRST, len(part)), *part.shape[1:]), self._dtype)
        need = self._count + len(part)
        if need > len(self._room):  # the system moves pages, and gives new ones as they are used
            self._room.resize((need + need // 4, *part.shape[1:]), refcheck=False)
        self._room[self._count : need] = part
        self._count = need

    def array(self) -> NDArray[Any] | None:
        """All rows (n, ...), which belong to the caller; None where some had none."""
        return None if self._room is None else self._room[: self._count]
