"""What a loop has done: one row of an SQLite file per finished step, beside the labels.

    loop_settings  what the loop was started with
    loop_steps     round · step · result (JSON) · when · how long

A step is either recorded with its result or was never done: it may be done again without harm.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from bayrace.config.renamed import new_names
from bayrace.data.frame import DataError
from bayrace.system.database import transaction
from bayrace.workflow.loop.steps import Step

S = TypeVar("S", bound=Step)

STATE = "loop.sqlite"
_TABLES = """
CREATE TABLE IF NOT EXISTS loop_settings (content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS loop_steps (
    round INTEGER NOT NULL, step TEXT NOT NULL, result TEXT NOT NULL, ended REAL NOT NULL,
    seconds REAL NOT NULL, PRIMARY KEY (round, step));
"""


class State:
    """The steps of one loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._connected() as connection:
            connection.executescript(_TABLES)

    def claim(self, settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
        """Remember what the loop is started with, and refuse to go on with anything else.

        `chosen` are the settings that are not defaults. A loop that was begun when there was no
        such setting yet goes on with its default.
        """
        with self._connected() as connection:
            found = connection.execute("SELECT content FROM loop_settings").fetchone()
            if found is None:
                connection.execute("INSERT INTO loop_settings VALUES (?)", (json.dumps(settings),))
                return
        earlier = new_names(json.loads(found[0]))
        keys = sorted({*earlier, *settings})
        changed = [key for key in keys if _differ(key, earlier, settings, chosen)]
        if changed:
            raise DataError(
                f"{self.path.parent}: was begun with other settings of {', '.join(changed)}; "
                "restore them, choose another folder with -s output=..., or start anew with "
                "--overwrite"
            )

    def result(self, number: int, step: type[S]) -> S | None:
        """What a step came to; None if it is not done."""
        with self._connected() as connection:
            found = connection.execute(
                "SELECT result FROM loop_steps WHERE round = ? AND step = ?", (number, step.name)
            ).fetchone()
        return None if found is None else step.from_json(json.loads(found[0]))

    def record(self, number: int, result: Step, *, seconds: float) -> None:
        """A step is done."""
        row = (number, result.name, json.dumps(result.to_json()), time.time(), seconds)
        with self._connected() as connection:
            connection.execute("INSERT OR REPLACE INTO loop_steps VALUES (?, ?, ?, ?, ?)", row)

    def seconds(self, number: int) -> dict[str, float]:
        """How long the steps of a round took."""
        with self._connected() as connection:
            found = connection.execute(
                "SELECT step, seconds FROM loop_steps WHERE round = ? ORDER BY rowid", (number,)
            ).fetchall()
        return dict(found)

    def once(self, number: int, step: type[S], work: Callable[[], S]) -> tuple[S, float | None]:
        """The result of a step, done now unless it was before; seconds are None if it was."""
        found = self.result(number, step)
        if found is not None:
            return found, None
        begin = time.monotonic()
        result = work()
        seconds = time.monotonic() - begin
        self.record(number, result, seconds=seconds)
        return result, seconds

    def _connected(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction of its own."""
        return transaction(self.path, "file of a loop")


def _differ(
    key: str, earlier: Mapping[str, Any], now: Mapping[str, Any], chosen: Mapping[str, Any]
) -> bool:
    """Whether a setting is not what it was."""
    if key not in earlier:
        return key in chosen
    old, new = earlier[key], now.get(key)
    if isinstance(old, dict) and isinstance(new, dict):
        inner = chosen.get(key, {})
        return any(_differ(each, old, new, inner) for each in {*old, *new})
    return bool(old != new)
