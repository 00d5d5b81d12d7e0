"""Rows that grow in place."""

from __future__ import annotations

import tracemalloc

import numpy as np

from bayrace.select.rows import Rows


def test_rows_are_those_that_were_added() -> None:
    parts = np.split(np.arange(30_000.0).reshape(-1, 3), [1, 5, 900, 5000])
    rows = Rows(np.float64)
    for part in parts:
        rows.add(part)
    np.testing.assert_array_equal(rows.array(), np.concatenate(parts))


def test_what_some_lack_is_known_of_none() -> None:
    rows = Rows(np.float64)
    assert rows.array() is None
    for part in (np.ones((2, 3)), None, np.ones((2, 3))):
        rows.add(part)
    assert rows.array() is None


def test_they_are_never_held_twice() -> None:
    """A pool of 100 000 structures takes 4 bytes a number, and what it grows by at most."""
    rows, part = Rows(np.float32), np.ones((500, 36))
    tracemalloc.start()
    try:
        for _ in range(200):
            rows.add(part)
        found = rows.array()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is not None
    assert peak < 1.3 * found.nbytes
