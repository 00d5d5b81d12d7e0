"""A calibration of σ on validation frames, as every training ends with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bayrace.calibrate.fit import Powers, fit_calibration
from bayrace.calibrate.method import RecalibrationMethod
from bayrace.calibrate.seen import refuse_seen
from bayrace.config import make_config
from bayrace.config.build import label_keys
from bayrace.core.prediction import Prediction
from bayrace.data.frame import Frame
from bayrace.data.read import read_frames, split_isolated
from bayrace.data.split import frame_hashes
from bayrace.models.noise import noise_spec_of
from bayrace.potential.opened import altered, opened
from bayrace.potential.potential import Potential
from bayrace.workflow.training_data import training_frames

Batches = Iterable[tuple[Sequence[Frame], Prediction]]

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
    try:
        return fitted_to(potential, valid, raw_predictions(potential, valid), method=method)
    except ValueError as error:
        _log.warning("σ is not calibrated: %s", error)
        return potential


def calibrate(
    potential: Potential | str | Path,
    data: str | Path | Sequence[str | Path] | Sequence[Frame] | None = None,
    *,
    method: str | RecalibrationMethod = "scale",
) -> Potential:
    """The potential with σ that agrees with its errors on labelled data.

    `data` are files or frames; None: the validation set of its training. Frames that it was trained
    on, or that are kept for its test, are refused.
    """
    known = opened(potential)
    frames = _frames(known, data)
    refuse_seen(known.frames, frames)
    return fitted_to(known, frames, raw_predictions(known, frames), method=method)


def raw_predictions(
    potential: Potential,
    frames: Sequence[Frame],
    *,
    edge_budget: int = 20_000,
    progress: Callable[[int], None] | None = None,
) -> Batches:
    """Predictions with the variances that the posterior has; stress where a label asks for it."""
    return potential.predict_frames(
        frames,
        stress=any(frame.stress is not None and frame.pbc.all() for frame in frames),
        calibrated=False,
        edge_budget=edge_budget,
        progress=progress,
    )


def fitted_to(
    potential: Potential,
    frames: Sequence[Frame],
    raw: Batches,
    *,
    method: str | RecalibrationMethod,
) -> Potential:
    """The potential with a calibration by raw predictions of frames, which it keeps in mind.

    Powers of σ that it knows, such as those of an adopted network, are kept.
    """
    powers = Powers.known(potential.statistics)
    calibration = fit_calibration(raw, method=method, powers=powers)
    seen = {**potential.frames, "calibration": frame_hashes(frames)}
    return altered(potential, calibration=calibration, frames=seen)


def _frames(
    potential: Potential, data: str | Path | Sequence[str | Path] | Sequence[Frame] | None
) -> Sequence[Frame]:
    if data is None:
        return training_frames(potential)[1]
    files = [data] if isinstance(data, str | Path) else list(data)
    if all(isinstance(each, Frame) for each in files):
        return [each for each in files if isinstance(each, Frame)]
    config = make_config(potential.config, source="configuration of the potential")
    keys = label_keys(config.data, config.target)
    found = read_frames([str(each) for each in files], keys=keys, config_weights={})
    return split_isolated(found)[0]
