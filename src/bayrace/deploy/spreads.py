"""Standard deviations under the names that every consumer of predictions uses."""

from __future__ import annotations

from typing import Any

from bayrace.core.prediction import Uncertain, standard_deviation

KINDS = ("uncertainty", "aleatoric", "epistemic")
"""Total, noise and ignorance; each a standard deviation in the unit of its quantity."""


def spreads(name: str, value: Uncertain, where: int | slice) -> dict[str, Any]:
    """`{name}_{kind}` for each kind, of the structure or atoms `where`: floats or numpy arrays."""
    variances = (value.total, value.aleatoric, value.epistemic)
    stds = (standard_deviation(variance, like=value.mean)[where] for variance in variances)
    arrays = (std.numpy(force=True) for std in stds)
    return {
        f"{name}_{kind}": float(array) if array.ndim == 0 else array
        for kind, array in zip(KINDS, arrays, strict=True)
    }
