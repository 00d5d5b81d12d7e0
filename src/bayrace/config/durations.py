"""Durations as people write them: 90, "90", "45s", "30m", "1h30m", "2.5h", "1d"."""

from __future__ import annotations

import math
import re

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])\s*", re.IGNORECASE)


def parse_duration(value: object) -> float:
    """Seconds meant by a number of seconds or by text such as "30m" or "1h30m"."""
    seconds = _seconds(value)
    if seconds is None or not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(
            f"{value!r} is not a duration; use a positive number of seconds, "
            'or "45s", "30m", "1h30m", "2d"'
        )
    return seconds


def format_duration(seconds: float) -> str:
    """Seconds as short text: 5s, 3m07s, 2h05m, 4d03h."""
    whole = max(0, round(seconds))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02d}h"
    if hours:
        return f"{hours}h{minute:02d}m"
    return f"{minutes}m{second:02d}s" if minutes else f"{second}s"


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e18 else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    try:
        return float(text)
    except ValueError:
        pass
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text):
        return None
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)
