"""A calibration of σ on validation frames, as every training ends with."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from bayrace.calibrate.fit import fit_calibration
from bayrace.calibrate.method import RecalibrationMethod
from bayrace.data.frame import Frame
from bayrace.data.split import frame_hashes
from bayrace.models.noise import noise_spec_of
from bayrace.potential.potential import Potential

_log = logging.getLogger(__name__)


def calibrated(
    potential: Potential, valid: Sequence[Frame], *, method: str | RecalibrationMethod | None
) -> Potential:
    """The potential with σ fitted to its errors on the validation set, by a method or none.

    As it is where it predicts no σ at all. Where the frames do not allow a calibration a warning
    says why; the training that went before is not lost.
    """
    silent = noise_spec_of(potential.model).kind == "none" and potential.posterior.name == "point"
    if method is None or silent:
        return potential
    stress = any(frame.stress is not None and frame.pbc.all() for frame in valid)
    raw = potential.predict_frames(valid, stress=stress, calibrated=False)
    try:
        calibration = fit_calibration(raw, method=method)
    except ValueError as error:
        _log.warning("σ is not calibrated: %s", error)
        return potential
    seen = {**potential.frames, "calibration": frame_hashes(valid)}
    return replace(potential, calibration=calibration, frames=seen)
