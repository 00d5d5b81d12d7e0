"""Labels on disk: one SQLite file, one row per structure, every change committed at once.

    labels       hash of the geometry · state · tries · last error · structure with its labels
    label_calls  every call of the oracle: when, where, how long, how it ended

A row is written by the process that computed it, as soon as it is computed, so that no label is
lost whatever happens to the process that asked for it. Tables of other names may share the file.
"""

from __future__ import annotations

import io
import os
import socket
import sqlite3
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from bayrace.data.frame import DataError, Frame
from bayrace.data.split import frame_fingerprint
from bayrace.system.database import transaction

if TYPE_CHECKING:
    import psutil

State = Literal["waiting", "running", "done", "failed"]

_TABLES = """
CREATE TABLE IF NOT EXISTS label_method (method TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS labels (
    hash TEXT PRIMARY KEY, state TEXT NOT NULL, tries INTEGER NOT NULL, error TEXT NOT NULL,
    frame BLOB NOT NULL, call INTEGER);
CREATE TABLE IF NOT EXISTS label_calls (
    id INTEGER PRIMARY KEY, hash TEXT NOT NULL, started REAL NOT NULL, host TEXT NOT NULL,
    process INTEGER NOT NULL, created REAL NOT NULL, seconds REAL, error TEXT);
"""
_FIELDS = ("numbers", "positions", "cell", "pbc")
_LABELS = ("energy", "forces", "stress")


class Worker(NamedTuple):
    """A process that may still be at work; `created` tells it from a later one of its number."""

    host: str
    process: int
    created: float  # s since the machine started, where it tells; see `_created`

    @staticmethod
    def here() -> Worker:
        """This process."""
        import psutil

        return Worker(socket.gethostname(), os.getpid(), _created(psutil.Process()))

    def alive(self) -> bool:
        """Whether it still runs; False where it runs on another machine and nobody can tell."""
        import psutil

        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.process)
            same = abs(_created(process) - self.created) < 0.1
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


class Row(NamedTuple):
    """What is known of one structure."""

    state: State
    tries: int  # calls that ended, well or badly
    error: str  # of the last call, empty where it ended well
    worker: Worker | None  # that runs it, or ran it last
    started: float  # s since the epoch, of the last call


class LabelStore:
    """The labels of one method in one file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def prepare(self, method: str) -> None:
        """Make the tables, and refuse a file with labels of another method."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._connected() as connection:
            connection.executescript(_TABLES)
        with self._connected() as connection:
            found = connection.execute("SELECT method FROM label_method").fetchone()
            if found is None:
                connection.execute("INSERT INTO label_method VALUES (?)", (method,))
            elif found[0] != method:
                raise DataError(
                    f"{self.path}: holds labels by {found[0]}, not by {method}; use that oracle, "
                    "or another file"
                )

    def add(self, frames: Sequence[Frame]) -> list[str]:
        """Ask for labels; returns the hash of each frame, the same for equal geometries."""
        hashes = [geometry_hash(frame) for frame in frames]
        rows = [(h, _packed(bare(frame))) for h, frame in zip(hashes, frames, strict=True)]
        with self._connected() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO labels VALUES (?, 'waiting', 0, '', ?, NULL)", rows
            )
        return hashes

    def start(self, hash_: str, worker: Worker) -> None:
        """Note that a process begins to compute this label."""
        with self._connected() as connection:
            _begin(connection, hash_, time.time(), worker)

    def finish(
        self, hash_: str, label: Frame, *, seconds: float, worker: Worker | None = None
    ) -> None:
        """Keep a label; `worker` is who computed it, where nobody noted its start."""
        self._close(hash_, _packed(label), "", seconds=seconds, worker=worker)

    def fail(self, hash_: str, error: str, *, seconds: float, worker: Worker | None = None) -> None:
        """Keep an error; a label that is there already stays. `worker`: as for `finish`."""
        self._close(hash_, None, error, seconds=seconds, worker=worker)

    def rows(self) -> dict[str, Row]:
        """All structures by their hash."""
        with self._connected() as connection:
            found = connection.execute(
                "SELECT labels.hash, state, tries, labels.error, host, process, created, started "
                "FROM labels LEFT JOIN label_calls ON label_calls.id = labels.call"
            ).fetchall()
        return {
            hash_: Row(state, tries, error, Worker(*where) if where[0] else None, started or 0.0)
            for hash_, state, tries, error, *where, started in found
        }

    def labelled(self, frames: Sequence[Frame]) -> list[Frame | None]:
        """The frames with their labels; None where there is none."""
        with self._connected() as connection:
            found = dict(
                connection.execute("SELECT hash, frame FROM labels WHERE state = 'done'").fetchall()
            )
        packed = [found.get(geometry_hash(frame)) for frame in frames]
        return [
            None if content is None else _with_labels(frame, content)
            for frame, content in zip(frames, packed, strict=True)
        ]

    def calls(self) -> int:
        """How often the oracle was called, whatever came of it."""
        with self._connected() as connection:
            return int(connection.execute("SELECT count(*) FROM label_calls").fetchone()[0])

    def _close(
        self, hash_: str, label: bytes | None, error: str, *, seconds: float, worker: Worker | None
    ) -> None:
        """End a call with a label, or without one, which leaves a label that is there already."""
        with self._connected() as connection:
            if worker is not None:
                _begin(connection, hash_, time.time() - seconds, worker)
            state = "failed" if label is None else "done"
            connection.execute(
                "UPDATE labels SET state = :state, tries = tries + 1, error = :error, "
                "frame = coalesce(:label, frame) "
                "WHERE hash = :hash AND (:label IS NOT NULL OR state != 'done')",
                {"state": state, "error": error, "label": label, "hash": hash_},
            )
            _end(connection, hash_, seconds, error)

    def _connected(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction of its own."""
        return transaction(self.path, "file of labels")


def _created(process: psutil.Process) -> float:
    """When a process began, by a clock that nobody sets.

    psutil adds the time of the boot, which the kernel derives from the clock of the day: set that
    back, and every process at work would seem to be another one, and be paid for twice.
    """
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text("utf-8", errors="replace")
    except OSError:  # no Linux, or no such process any more, which psutil will say
        return float(process.create_time())
    return int(text.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def _begin(connection: sqlite3.Connection, hash_: str, started: float, worker: Worker) -> None:
    call = connection.execute(
        "INSERT INTO label_calls (hash, started, host, process, created) VALUES (?, ?, ?, ?, ?)",
        (hash_, started, *worker),
    ).lastrowid
    connection.execute(
        "UPDATE labels SET state = 'running', call = ? WHERE hash = ? AND state != 'done'",
        (call, hash_),
    )


def _end(connection: sqlite3.Connection, hash_: str, seconds: float, error: str) -> None:
    connection.execute(
        "UPDATE label_calls SET seconds = ?, error = ? "
        "WHERE id = (SELECT call FROM labels WHERE hash = ?)",
        (seconds, error, hash_),
    )


def geometry_hash(frame: Frame) -> str:
    """Of species, positions, cell and periodicity, to the last bit (sha256, hex)."""
    return frame_fingerprint(bare(frame))


def bare(frame: Frame) -> Frame:
    """Without labels."""
    return replace(frame, energy=None, forces=None, stress=None)


def _packed(frame: Frame) -> bytes:
    """Geometry and labels as the bytes of an .npz file."""
    values = {name: getattr(frame, name) for name in (*_FIELDS, *_LABELS)}
    buffer = io.BytesIO()
    np.savez(buffer, **{name: value for name, value in values.items() if value is not None})
    return buffer.getvalue()


def _with_labels(frame: Frame, content: bytes) -> Frame:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        energy = float(arrays["energy"])
        return replace(frame, energy=energy, forces=arrays["forces"], stress=arrays.get("stress"))
