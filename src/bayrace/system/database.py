"""SQLite files that several processes write: every transaction is on disk, or never was."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bayrace.data.frame import DataError

_PATIENCE = 60.0  # s to wait for another process that writes


@contextmanager
def transaction(path: Path, what: str) -> Iterator[sqlite3.Connection]:
    """Committed to disk at the end of the block, or undone as a whole.

    `what` completes "it is no ..." for a file that is something else.
    """
    try:
        with closing(sqlite3.connect(path, timeout=_PATIENCE)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
    except sqlite3.DatabaseError as error:
        raise DataError(
            f"{path}: cannot be used ({error}); it is no {what}, is damaged, or lies where it "
            "cannot be written"
        ) from error
