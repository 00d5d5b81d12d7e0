"""Standard deviations under the names that every consumer of predictions uses."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayrace.core.prediction import Uncertain

KINDS = ("uncertainty", "aleatoric", "epistemic")
"""Total, noise and ignorance; each a standard deviation in the unit of its quantity."""


def spreads(name: str, value: Uncertain, where: int | slice) -> dict[str, Any]:
    """`{name}_{kind}` for each kind, of the structure or atoms `where`: floats or numpy arrays."""
    found: dict[str, Any] = {}
    vector = value.total.shape != value.mean.shape
    for kind, variance in zip(KINDS, (value.total, value.aleatoric, value.epistemic), strict=True):
        array = variance.numpy(force=True)
        if vector:
            array = array.diagonal(axis1=-2, axis2=-1)
        std = np.sqrt(array[where])
        found[f"{name}_{kind}"] = float(std) if std.ndim == 0 else std
    return found
