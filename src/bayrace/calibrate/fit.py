"""Fit a calibration of any method to predictions of labelled frames."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.calibrate import conformal, isotonic, power, scale
from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.calibrate.frames import bootstrap, largest_share
from bayrace.calibrate.methods import METHODS
from bayrace.calibrate.shapes import root_mean_square
from bayrace.core.prediction import Prediction, Uncertain
from bayrace.data.frame import Frame
from bayrace.data.labels import label_arrays
from bayrace.data.split import fingerprint
from bayrace.likelihood.robust import robust_scale

Array = NDArray[np.float64]

_log = logging.getLogger(__name__)
_LARGE_SHARE = 0.25  # of a mean square, above which one frame is named


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
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("energy", "forces", "stress")
    }
    atoms = np.array([len(frame.numbers) for frame in frames])
    errors = {
        "energy": _errors(z["energy"], np.arange(len(frames))),
        "forces": _errors(z["forces"], np.arange(len(frames)).repeat(atoms)),
        "stress": _errors(z["stress"], np.arange(len(frames))),
    }
    known = ~np.isnan(z["forces"]).ravel()
    each = _Atoms(
        np.concatenate([frame.numbers for frame in frames]).repeat(3)[known],
        np.concatenate([part.level for part in parts]).repeat(3)[known],
    )
    fitted = {
        "energy": _fitted(errors["energy"], method, scalar=True),
        "forces": _fitted_forces(errors["forces"], method, each),
        "stress": _fitted(errors["stress"], method, scalar=False),
    }
    for name, found in errors.items():
        _warn_of_one_frame(name, found, frames)
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
    """What is known of each component of the forces that has an error, (n,)."""

    numbers: NDArray[np.int64]
    level: Array  # σ of its atom


class _Errors(NamedTuple):
    """Known errors of one quantity in units of σ, and the structures that they are of."""

    z: Array  # (n,)
    owner: NDArray[np.int64]  # (n,) ascending


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


def _errors(z: Array, owner: NDArray[np.int64]) -> _Errors:
    """Those that are known, of z (n,) or (n, d) and the structures (n,)."""
    wide = z.reshape(len(owner), -1)
    known = ~np.isnan(wide)
    return _Errors(wide[known], np.broadcast_to(owner[:, None], wide.shape)[known])


def _fitted_forces(errors: _Errors, method: str, atoms: _Atoms) -> Recalibration | None:
    """Methods that tell atoms apart; the others treat forces like all quantities."""
    if errors.z.size and method == "scale-element":
        return _with_interval(scale.fit(errors.z, numbers=atoms.numbers), errors, robust_scale)
    if errors.z.size and method == "power":
        return power.fit(errors.z, atoms.level)
    return _fitted(errors, method, scalar=False)


def _fitted(errors: _Errors, method: str, *, scalar: bool) -> Recalibration | None:
    if not errors.z.size:
        return None
    if method == "isotonic":
        found, estimate = isotonic.fit(errors.z, symmetric=not scalar), root_mean_square
    elif method == "conformal":
        found, estimate = conformal.fit(errors.z, errors.owner), root_mean_square
    elif method == "scale-rms":
        found, estimate = scale.fit(errors.z, robust=False), root_mean_square
    else:
        found, estimate = scale.fit(errors.z), robust_scale
    return _with_interval(found, errors, estimate)


def _with_interval(
    found: Recalibration, errors: _Errors, estimate: Callable[[Array], float]
) -> Recalibration:
    return replace(found, interval=bootstrap(estimate, errors.z, errors.owner))


def _warn_of_one_frame(name: str, errors: _Errors, frames: Sequence[Frame]) -> None:
    """Say where the root mean square of the errors is that of one frame."""
    if not errors.z.size:
        return
    share, worst = largest_share(errors.z, errors.owner)
    if share > _LARGE_SHARE and len(frames) > 1 / _LARGE_SHARE:
        _log.warning(
            "calibration of the %s: one of %d frames (%s, frame %d) carries %.0f %% of the mean "
            "square of error/σ; look at it. The method scale hardly follows it, the others do.",
            name,
            len(frames),
            frames[worst].source,
            frames[worst].index,
            100 * share,
        )
