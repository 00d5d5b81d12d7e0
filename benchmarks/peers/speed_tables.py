"""Tables of the speed benchmark. Standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

PEERS = {  # what stands beside what: matched by purpose, by irreps, by being the same network
    "bayrace-small": ["mace-32", "mace-64", "apax-gmnn"],
    "bayrace-medium": ["mace-64"],
    "bayrace-2": ["nequip-2", "nequip-2-compiled"],
    "bayrace-3": ["nequip-3", "nequip-3-compiled"],
    "bayrace-paper": ["nequip-paper", "e3nn-paper", "e3nn-paper-pruned"],
    "bayrace-paper-l2": ["nequip-paper"],
}
TITLES = {
    "step": "training step, 5 molecules of 27 atoms, ms",
    "3bpa-1": "energy and forces, one molecule of 27 atoms, ms",
    "3bpa-5": "energy and forces, 5 molecules of 27 atoms, ms",
    "dynamics": "one step of molecular dynamics in ASE, 27 atoms, ms",
    "memory": "peak memory, 1000 atoms, MB",
    "start": "from process start to the end of the first training step, s",
    "command": "from `bayrace train` to its first step, no kernel built before, s",
}


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def measured(results: dict[str, dict[str, Any]], quantity: str, size: str) -> float | None:
    """The median of a quantity in seconds, or MB; None where there is none."""
    entry = results.get(quantity, {}).get(size, {})
    return entry.get("peak") if quantity == "memory" else entry.get("median")


def print_tables(results: dict[str, dict[str, Any]]) -> None:
    """Medians by quantity, then ratios to the bayrace that each peer stands beside."""
    for quantity, sizes in results.items():
        title = TITLES.get(quantity, f"energy and forces, {quantity[3:]} silicon atoms, ms")
        print(f"\n{title}")
        for size, entry in sizes.items():
            print(f"  {size:<20}{_cell(quantity, entry)}")
        for ours, others in PEERS.items():
            base = measured(results, quantity, ours)
            for other in others:
                value = measured(results, quantity, other)
                if base and value:
                    print(f"  {other} / {ours}: {value / base:.2f}")


def _cell(quantity: str, entry: dict[str, Any]) -> str:
    if "error" in entry:
        return str(entry["error"])
    if quantity == "memory":
        return f"{entry['peak']:8.0f}  of which {entry['peak'] - entry['before']:.0f} to evaluate"
    if quantity in ("start", "command"):
        return f"{entry['median']:8.1f}"
    text = f"{1000 * entry['median']:8.1f}  fastest {1000 * min(entry['seconds']):.1f}"
    return text + (f"  {1 / entry['median']:.1f} steps/s" if quantity == "dynamics" else "")


def print_bars(verdicts: list[dict[str, Any]]) -> None:
    """Outcome of every bar that this run measured."""
    print("\nbars")
    for verdict in verdicts:
        outcome = "pass" if verdict["passed"] else "FAIL"
        print(f"  {outcome}  {verdict['bar']}: {verdict['value']:.2f}")
