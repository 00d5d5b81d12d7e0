"""Fit a calibration of any method to predictions of labelled frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.calibrate import conformal, isotonic, power, scale
from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.calibrate.methods import METHODS
from bayrace.data.frame import Frame
from bayrace.data.labels import label_arrays
from bayrace.data.split import fingerprint
from bayrace.types import Prediction, Uncertain

Array = NDArray[np.float64]


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
    z = {
        name: np.concatenate([getattr(part, name).ravel() for part in parts])
        for name in ("energy", "forces", "stress")
    }
    atoms = _Atoms(
        np.concatenate([frame.numbers for frame in frames]).repeat(3),
        np.concatenate([part.level for part in parts]).repeat(3),
    )
    fitted = {
        "energy": _fitted(z["energy"], method, scalar=True),
        "forces": _fitted_forces(z["forces"], method, atoms),
        "stress": _fitted(z["stress"], method, scalar=False),
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
    level: Array  # (N,), σ of each atom's force


class _Atoms(NamedTuple):
    """What is known of each component of the forces, (3N,)."""

    numbers: NDArray[np.int64]
    level: Array  # σ of its atom


def _part(frames: Sequence[Frame], prediction: Prediction) -> _Part:
    labels = label_arrays(frames)
    return _Part(
        _standardised(labels.energy, prediction.energy),
        _standardised(labels.forces, prediction.forces),
        _standardised(labels.stress, prediction.stress),
        prediction.forces.level.double().numpy(force=True),
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


def _fitted_forces(z: Array, method: str, atoms: _Atoms) -> Recalibration | None:
    """Methods that tell atoms apart; the others treat forces like all quantities."""
    known = ~np.isnan(z)
    if known.any() and method == "scale-element":
        return scale.fit(z[known], numbers=atoms.numbers[known])
    if known.any() and method == "power":
        return power.fit(z[known], atoms.level[known])
    return _fitted(z, method, scalar=False)


def _fitted(z: Array, method: str, *, scalar: bool) -> Recalibration | None:
    known = z[~np.isnan(z)]
    if not known.size:
        return None
    if method == "isotonic":
        return isotonic.fit(known, symmetric=not scalar)
    if method == "conformal":
        return conformal.fit(known)
    return scale.fit(known)
