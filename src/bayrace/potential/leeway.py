"""How far from the distances of its training data a potential may go before dynamics stop.

Weights that began as pretrained ones were right on longer bonds than those of the training data
long before these were fine-tuned: ethanol trained at 300 K is stopped in vain at its own
temperature by the limit that a network of random weights needs, and forces at 1000 K are wrong by
0.5 eV/Å only where distances are several times further away. Below the shortest distance forces
rise so steeply that no start helps.
"""

from __future__ import annotations

from dataclasses import replace

from bayrace.core.protocols import Experienced, ModelSpec
from bayrace.data.distances import STEEP, Distances

RANDOM, PRETRAINED = 2.0, 5.0
"""Limits of the gap between a distance and those of training data, in units of the usual one."""


def leeway(spec: ModelSpec) -> float:
    """The limit for a network of this specification."""
    return PRETRAINED if isinstance(spec, Experienced) and spec.pretrained else RANDOM


def strict_below(distances: Distances, spec: ModelSpec) -> Distances:
    """The same, with distances below the shortest one as far from the limit for every start."""
    return replace(distances, steep=STEEP * leeway(spec) / RANDOM)
