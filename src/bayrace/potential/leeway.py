"""How far from the distances of its training data a potential may go before dynamics stop.

Weights that began as pretrained ones knew longer and shorter bonds than those of the training data
before these were fine-tuned: forces of ethanol trained at 300 K are wrong by 0.5 eV/Å at 1000 K
only where distances are several times further away than the limit that a network of random weights
needs. Below the shortest distance forces rise steeply, and the pretraining helps less.
"""

from __future__ import annotations

from dataclasses import replace

from bayrace.core.protocols import Experienced, ModelSpec
from bayrace.data.distances import STEEP, Distances

RANDOM, PRETRAINED = 2.0, 5.0
"""Limits of the gap between a distance and those of training data, in units of the usual one."""

_BELOW = 3.0  # the same for pretrained weights below the shortest distance, where it counts STEEP


def leeway(spec: ModelSpec) -> float:
    """The limit for a network of this specification."""
    return PRETRAINED if isinstance(spec, Experienced) and spec.pretrained else RANDOM


def strict_below(distances: Distances, spec: ModelSpec) -> Distances:
    """The same, with distances below the shortest one nearer to the limit where that is wider."""
    limit = leeway(spec)
    return replace(distances, steep=STEEP * limit / min(limit, _BELOW))
