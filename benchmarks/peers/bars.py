"""The bars of the project on speed, stated and judged. Standard library only."""

from __future__ import annotations

from typing import Any

from speed_tables import measured

RATIOS = (  # quantity, slower, faster, at least, what it says
    ("step", "e3nn-paper", "bayrace-paper", 25.0, "the published formulation with e3nn"),
    ("step", "nequip-paper", "bayrace-paper-l2", 8.0, "NequIP at the same irreps"),
    ("step", "mace-64", "bayrace-small", 30.0, "MACE-64"),
    ("step", "nequip-2-compiled", "bayrace-2", 1.0, "NequIP compiled, two layers"),
    ("step", "nequip-3-compiled", "bayrace-3", 8.0, "NequIP compiled, three layers"),
    ("dynamics", "apax-gmnn", "bayrace-small", 1.0, "apax"),
)
GROWTH = 1.10  # of the cost per atom from 216 to 1000 atoms
MEMORY = 0.5  # of MACE-64's
START = 15.0  # s

Verdict = dict[str, Any]


def bars(results: dict[str, dict[str, Any]]) -> list[Verdict]:
    """Each bar that the results can decide, with its value and outcome."""
    found: list[Verdict] = []
    for quantity, slower, faster, least, words in RATIOS:
        value = _ratio(results, quantity, slower, faster)
        if value is not None:
            bar = f"{quantity} of {faster} at least {least:g} times as fast as {words}"
            found.append({"bar": bar, "value": value, "passed": value >= least})
    return found + _growth(results) + _memory(results) + _start(results)


def _growth(results: dict[str, dict[str, Any]]) -> list[Verdict]:
    found = []
    for size in results.get("si-1000", {}):
        small, large = (measured(results, q, size) for q in ("si-216", "si-1000"))
        if size.startswith("bayrace") and small and large:
            value = (large / 1000) / (small / 216)
            bar = f"cost per atom of {size}, 1000 atoms to 216, below {GROWTH:g}"
            found.append({"bar": bar, "value": value, "passed": value < GROWTH})
    return found


def _memory(results: dict[str, dict[str, Any]]) -> list[Verdict]:
    """Of the whole process, and of what the evaluation adds to it."""
    found = []
    value = _ratio(results, "memory", "bayrace-small", "mace-64")
    if value is not None:
        bar = f"peak memory of bayrace-small, 1000 atoms, below {MEMORY:g} of mace-64"
        found.append({"bar": bar, "value": value, "passed": value < MEMORY})
        ours, theirs = (results["memory"][size] for size in ("bayrace-small", "mace-64"))
        value = (ours["peak"] - ours["before"]) / (theirs["peak"] - theirs["before"])
        bar = f"the same, only what the evaluation adds, below {MEMORY:g}"
        found.append({"bar": bar, "value": value, "passed": value < MEMORY})
    return found


def _start(results: dict[str, dict[str, Any]]) -> list[Verdict]:
    found = []
    for size in results.get("command", {}):
        value = measured(results, "command", size)
        if value is not None:
            bar = f"seconds from `bayrace train` to the first step, {size}, at most {START:g}"
            found.append({"bar": bar, "value": value, "passed": value <= START})
    return found


def _ratio(
    results: dict[str, dict[str, Any]], quantity: str, above: str, below: str
) -> float | None:
    top, bottom = measured(results, quantity, above), measured(results, quantity, below)
    return top / bottom if top and bottom else None
