"""Seeded damage: to bytes, to texts and to values of a document."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, "", "x", "0", "-1", "nan", "inf", "\x00", "é" * 50, "{", "../../x"),
    *(0, 1, -1, 2, 3, 7, 255, 10**6, 10**9, 2**31, 2**63, 10**30, -(10**30), 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-300, 1e-12, 1e12, 1e38, 1e300, -1e300),
    *(float("nan"), float("inf"), float("-inf")),
    *([], {}, [1], [[]], [None], {"a": 1}, [0] * 100, {"": {}}, [1e400], ["1"]),
)


def damaged_bytes(data: bytes, draw: random.Random) -> bytes:
    """Bits flipped, pieces lost, doubled, moved or overwritten."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5, 50))):
        if not found:
            break
        place, size = draw.randrange(len(found)), draw.choice((1, 2, 8, 64, 1024))
        kind = draw.randrange(7)
        if kind == 0:
            found[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del found[place:]
        elif kind == 2:
            del found[place : place + size]
        elif kind == 3:
            found[place:place] = found[place : place + size]
        elif kind == 4:
            found[place : place + size] = draw.randbytes(size)
        elif kind == 5:
            found[place : place + size] = bytes(size)
        else:
            other = draw.randrange(len(found))
            found[place : place + size] = found[other : other + size]
    return bytes(found)


def hostile_value(value: Any, draw: random.Random) -> Any:
    """Something else in place of a value, often nearly right."""
    kind = draw.randrange(8)
    if kind == 0 and isinstance(value, int | float) and not isinstance(value, bool):
        return draw.choice((-value, value + 1, value * 10**9, value / 7 if value < 1e9 else 0))
    if kind == 1 and isinstance(value, str) and value:
        place = draw.randrange(len(value))
        return value[:place] + draw.choice(("9", "-", "é", "", "0" * 30)) + value[place + 1 :]
    if kind == 2 and isinstance(value, list):
        return value + value if draw.random() < 0.5 else value[:-1]
    if kind == 3:
        return nested(draw.choice((5, 40, 200, 900)), draw)
    if kind == 4:
        return [value]
    return something(draw)


def something(draw: random.Random) -> Any:
    """One of the hostile values, of its own: the next change may be inside of it."""
    return copy.deepcopy(draw.choice(HOSTILE))


def nested(depth: int, draw: random.Random) -> Any:
    """Lists or mappings in each other."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def hostile_document(document: Any, draw: random.Random) -> Any:
    """The document with some of its places changed, left out, renamed or added to."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = list(_places(document))
        if not places:
            return something(draw)
        holder, key = draw.choice(places)
        kind = draw.randrange(10)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[str(key) + draw.choice(("x", "_", " ", "1"))] = holder.pop(key)
        elif kind == 2 and isinstance(holder, dict):
            holder[draw.choice(("x", "", "0", "-1", "999", "e0s"))] = something(draw)
        else:
            holder[key] = hostile_value(holder[key], draw)
    return document


def _places(value: Any, depth: int = 0) -> Any:
    """Every container and key in it."""
    if depth > 30 or not isinstance(value, dict | list):
        return
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        yield from _places(value[key], depth + 1)


def hostile_text(text: str, draw: random.Random, words: tuple[str, ...]) -> str:
    """The text with words replaced, and lines lost, doubled, moved or made endless."""
    lines = text.split("\n")
    change: tuple[Callable[[], None], ...] = (
        lambda: _replace_word(lines, draw, words),
        lambda: _replace_word(lines, draw, words),
        lambda: _replace_word(lines, draw, words),
        lambda: lines.pop(draw.randrange(len(lines))) and None,
        lambda: lines.insert(draw.randrange(len(lines)), draw.choice(lines)),
        lambda: lines.insert(draw.randrange(len(lines)), draw.choice(words)),
        lambda: draw.shuffle(lines),
        lambda: _lengthen(lines, draw),
    )
    for _ in range(draw.choice((1, 1, 2, 4, 8))):
        if not lines:
            break
        draw.choice(change)()
    return "\n".join(lines)


def _replace_word(lines: list[str], draw: random.Random, words: tuple[str, ...]) -> None:
    place = draw.randrange(len(lines))
    parts = lines[place].split(" ")
    parts[draw.randrange(len(parts))] = draw.choice(words)
    lines[place] = " ".join(parts)


def _lengthen(lines: list[str], draw: random.Random) -> None:
    if draw.random() < 0.1:
        place = draw.randrange(len(lines))
        times = draw.choice((100, 3000, 60_000))
        lines[place] = (lines[place] + " ") * min(times, 3_000_000 // (len(lines[place]) + 1))
