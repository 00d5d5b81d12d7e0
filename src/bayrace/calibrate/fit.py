"""Fit a calibration of any method to predictions of labelled frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.calibrate import conformal, isotonic, scale
from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.data.frame import Frame
from bayrace.data.labels import label_arrays
from bayrace.data.split import fingerprint
from bayrace.types import Prediction, Uncertain

Array = NDArray[np.float64]

METHODS = ("scale", "scale-element", "isotonic", "conformal")
"""Names of the methods, as the command line takes them."""


def fit_calibration(
    batches: Iterable[tuple[Sequence[Frame], Prediction]], *, method: str
) -> Calibration:
    """Fit to raw predictions and the labels of their frames, as `predict_frames` yields them.

    A quantity without labels, or without any predicted σ, is left as it is; single numbers with
    σ = 0, which no factor changes, are left out.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; use one of {', '.join(METHODS)}")
    frames: list[Frame] = []
    parts: list[_Part] = []
    for some, prediction in batches:
        frames += some
        parts.append(_part(some, prediction))
    if not frames:
        raise ValueError("no frames to calibrate on; give at least one")
    numbers = np.concatenate([frame.numbers for frame in frames]).repeat(3)
    fitted = {
        name: _fitted(
            np.concatenate([getattr(part, name).ravel() for part in parts]),
            method,
            numbers=numbers if name == "forces" else None,
            scalar=name == "energy",
        )
        for name in ("energy", "forces", "stress")
    }
    if not any(fitted.values()):
        raise ValueError(
            "no quantity has both labels and a predicted σ, so there is nothing to calibrate; "
            "train with a likelihood (loss.kind: nll_jef), or use a posterior such as an ensemble"
        )
    return Calibration(method=method, **fitted, frames=len(frames), fingerprint=fingerprint(frames))


@dataclass(frozen=True, eq=False)
class _Part:
    """Errors of one batch in units of σ; nan where a label or σ is missing."""

    energy: Array  # (S,)
    forces: Array  # (N, 3)
    stress: Array  # (S, 6)


def _part(frames: Sequence[Frame], prediction: Prediction) -> _Part:
    labels = label_arrays(frames)
    return _Part(
        _standardised(labels.energy, prediction.energy),
        _standardised(labels.forces, prediction.forces),
        _standardised(labels.stress, prediction.stress),
    )


def _standardised(label: Array, value: Uncertain | None) -> Array:
    if value is None:
        return np.full_like(label, np.nan)
    if value.shape is not None:
        raise ValueError("these predictions are calibrated already; fit to the raw ones")
    mean, std = value.mean, value.std
    error = torch.as_tensor(label, dtype=mean.dtype, device=mean.device) - mean
    z: Array = torch.where(std > 0, error / std, torch.nan).numpy(force=True)
    return z


def _fitted(
    z: Array, method: str, *, numbers: NDArray[np.int64] | None, scalar: bool
) -> Recalibration | None:
    known = ~np.isnan(z)
    if not known.any():
        return None
    if method == "isotonic":
        return isotonic.fit(z[known], symmetric=not scalar)
    if method == "conformal":
        return conformal.fit(z[known])
    by_element = None if numbers is None or method == "scale" else numbers[known]
    return scale.fit(z[known], numbers=by_element)
