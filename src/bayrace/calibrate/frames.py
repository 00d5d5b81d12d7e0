"""How much a factor of σ hangs on single frames: bootstrap over structures, and the largest share.

Errors within a structure are not independent, so whole structures are drawn, with all they have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Structures = NDArray[np.int64]

LEVEL = 0.9
"""Of the interval that is shown."""

_DRAWS = 200
_MOST = 5000  # errors of a draw; beyond, evenly chosen ones of each structure stand for all


def bootstrap(
    estimate: Callable[[Array], float], z: Array, structure: Structures, *, seed: int = 0
) -> tuple[float, float] | None:
    """Ends of the interval of an estimate from errors z (n,) and the `structure` (n,) of each.

    None where there are fewer than two structures.
    """
    step = -(-z.size // _MOST)
    z, structure = z[::step], structure[::step]
    groups = np.split(z, np.flatnonzero(np.diff(structure)) + 1)
    if len(groups) < 2:
        return None
    random = np.random.default_rng(seed)
    drawn = random.integers(len(groups), size=(_DRAWS, len(groups)))
    found = [estimate(np.concatenate([groups[place] for place in row])) for row in drawn]
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def largest_share(z: Array, structure: Structures) -> tuple[float, int]:
    """Of Σ z², what one structure carries at most, and which one."""
    sums = np.bincount(structure, weights=z**2)
    worst = int(np.argmax(sums))
    total = float(sums.sum())
    return (float(sums[worst]) / total if total > 0 else 0.0), worst
