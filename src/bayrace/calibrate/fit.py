"""Fit a calibration of any method to predictions of labelled frames."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.calibrate import RECALIBRATIONS
from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.calibrate.frames import largest_share
from bayrace.calibrate.method import Errors, RecalibrationMethod
from bayrace.core.prediction import Prediction, Uncertain
from bayrace.data.frame import Frame, elements_of
from bayrace.data.labels import label_arrays
from bayrace.data.reference import composition
from bayrace.data.split import fingerprint

Array = NDArray[np.float64]

_log = logging.getLogger(__name__)
_LARGE_SHARE = 0.25  # of a mean square, above which one frame is named


class Powers(NamedTuple):
    """Powers of σ that are known beforehand."""

    energy: float = 1.0
    forces: float = 1.0

    @staticmethod
    def known(statistics: Mapping[str, Any]) -> Powers:
        """Those that the statistics of a potential hold; 1 where they hold none."""
        return Powers(**statistics.get(GROWTH, {}))


NO_POWERS = Powers()
GROWTH = "error_growth"
"""Their name among the statistics of a potential."""


def fit_calibration(
    batches: Iterable[tuple[Sequence[Frame], Prediction]],
    *,
    method: str | RecalibrationMethod,
    powers: Powers = NO_POWERS,
) -> Calibration:
    """Fit to raw predictions and the labels of their frames, as `predict_frames` yields them.

    The method may go by its name, with default options; it is fitted to σ with the given powers. A
    quantity without labels, or without any predicted σ, is left as it is; single numbers with
    σ = 0, which no factor changes, are left out.
    """
    chosen = RECALIBRATIONS.find(method)() if isinstance(method, str) else method
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
    places = np.arange(len(frames))
    errors = {
        "energy": _errors(z["energy"], places, scalar=True),
        "forces": _errors(z["forces"], places.repeat(atoms), scalar=False),
        "stress": _errors(z["stress"], places, scalar=False),
    }
    known = ~np.isnan(z["forces"]).ravel()
    errors["forces"] = replace(
        errors["forces"],
        numbers=np.concatenate([frame.numbers for frame in frames]).repeat(3)[known],
        level=np.concatenate([part.level for part in parts]).repeat(3)[known],
    )
    of = errors["energy"].structure
    elements = elements_of(frames)
    shares = composition(frames, elements)[of] / atoms[of, None]
    errors["energy"] = replace(
        errors["energy"],
        composition=dict(zip(elements, shares.T, strict=True)),
        level=(np.concatenate([part.energy_level for part in parts]) / atoms)[of],
    )
    given = {**powers._asdict(), "stress": 1.0}
    fitted = {
        name: _fitted(chosen, each, given[name]) if each.z.size else None
        for name, each in errors.items()
    }
    for name, found in errors.items():
        _warn_of_one_frame(name, found, frames)
    if not any(fitted.values()):
        raise ValueError(
            "no quantity has both labels and a predicted σ, so there is nothing to calibrate; "
            "train with a likelihood (loss.kind: nll_jef), or use a posterior such as an ensemble"
        )
    return Calibration(
        method=chosen.name, **fitted, frames=len(frames), fingerprint=fingerprint(frames)
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """Errors of one batch in units of σ; nan where a label or σ is missing."""

    energy: Array  # (S,)
    forces: Array  # (N, 3)
    stress: Array  # (S, 6)
    energy_level: Array  # (S,), σ of each energy
    level: Array  # (N,), σ of each atom's force


def _fitted(method: RecalibrationMethod, errors: Errors, power: float) -> Recalibration:
    """The recalibration of σ to a power."""
    if power == 1.0 or errors.level is None:
        return method.fit(errors)
    log = np.log(errors.level)
    pivot = float(np.exp(log.mean()))
    grown = (power - 1) * (log - math.log(pivot))
    found = method.fit(
        replace(errors, z=errors.z * np.exp(-grown), level=np.exp(log + grown))
    )  # whose geometric mean is the pivot too
    return replace(found, power=power * found.power, pivot=pivot)


def _part(frames: Sequence[Frame], prediction: Prediction) -> _Part:
    labels = label_arrays(frames)
    return _Part(
        _standardised(labels.energy, prediction.energy),
        _standardised(labels.forces, prediction.forces),
        _standardised(labels.stress, prediction.stress),
        prediction.energy.std.double().numpy(force=True),
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


def _errors(z: Array, structure: NDArray[np.int64], *, scalar: bool) -> Errors:
    """Those that are known, of z (n,) or (n, d) and the structures (n,)."""
    wide = z.reshape(len(structure), -1)
    known = ~np.isnan(wide)
    of = np.broadcast_to(structure[:, None], wide.shape)[known]
    return Errors(wide[known], of, scalar)


def _warn_of_one_frame(name: str, errors: Errors, frames: Sequence[Frame]) -> None:
    """Say where the root mean square of the errors is that of one frame."""
    if not errors.z.size:
        return
    share, worst = largest_share(errors.z, errors.structure)
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
