"""Keys that had other names in 0.1: they still work, and a note says what they are called now."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

_log = logging.getLogger(__name__)

RENAMED = {
    "train.clip": "train.max_gradient_norm",
    "train.improvement": "train.min_improvement",
    "explore.onward": "explore.restart_fraction",
    "explore.least": "explore.min_steps",
    "explore.look_every": "explore.uncertainty_every",
    "explore.rule.bound": "explore.rule.max_force_error",
    "explore.rule.over": "explore.rule.over_atoms",
    "select.over": "select.over_atoms",
    "select.apart": "select.min_distance",
}
"""Dotted keys of configurations, old and new; both lie in the same section."""


def new_names(raw: Any) -> Any:
    """The values of a configuration under the names that their keys have now.

    Those of a file or a potential that was written by an earlier version, too. A key that is given
    under both names stays as it is, and the old one is refused like any unknown key.
    """
    if not isinstance(raw, Mapping):
        return raw
    values = dict(raw)
    for old in _present(values):
        _rename(values, old.split("."), RENAMED[old].rpartition(".")[2])
    return values


def old_names(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `new_names`, for digests that were made under the old names."""
    values = dict(raw)
    for old, new in RENAMED.items():
        if _section(values, new.split("."), other=old) is not None:
            _rename(values, new.split("."), old.rpartition(".")[2])
    return values


def new_key(key: str) -> str:
    """A dotted key by its new name, with a note where that is another."""
    if key not in RENAMED:
        return key
    _note(key, "")
    return RENAMED[key]


def note_old_names(raw: Any, source: str) -> None:
    """Say which keys of a file have other names now."""
    for old in _present(raw):
        _note(old, f"{source}: ")


def _note(old: str, where: str) -> None:
    _log.warning("%s%s is called %s now; the old name still works", where, old, RENAMED[old])


def _present(raw: Any) -> list[str]:
    found = RENAMED.items()
    return [old for old, new in found if _section(raw, old.split("."), other=new) is not None]


def _section(raw: Any, path: list[str], *, other: str) -> Mapping[str, Any] | None:
    """The section that holds the last part of a path, and not that of the other path."""
    for part in path[:-1]:
        raw = raw.get(part) if isinstance(raw, Mapping) else None
    if not isinstance(raw, Mapping) or path[-1] not in raw:
        return None
    return None if other.rpartition(".")[2] in raw else raw


def _rename(values: dict[str, Any], path: list[str], new: str) -> None:
    """Replace a key in place of its dictionary, which is copied on the way."""
    for part in path[:-1]:
        values[part] = dict(values[part])
        values = values[part]
    items = [(new if key == path[-1] else key, value) for key, value in values.items()]
    values.clear()
    values.update(items)
