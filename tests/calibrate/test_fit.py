"""Fitting from frames and predictions: quantities apart, missing labels, potentials without σ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.calibrate import RECALIBRATIONS
from bayrace.calibrate.calibration import Calibration
from bayrace.calibrate.fit import fit_calibration
from bayrace.core.prediction import Prediction, Uncertain
from bayrace.data.frame import Frame, bare_frame
from bayrace.data.split import fingerprint

ATOMS, FRAMES = 4, 500
NUMBERS = np.array([8, 1, 1, 6])
WRONG = {8: 3.0, 1: 0.5, 6: 1.0}  # predicted over right σ of forces


def make_set(*, seed: int = 0) -> tuple[list[Frame], Prediction]:
    """Energies with σ four times too large; forces wrong by element; no stress labels."""
    generator = np.random.default_rng(seed)
    energy = generator.normal(size=FRAMES)
    ratio = np.tile([WRONG[int(z)] for z in NUMBERS], FRAMES)[:, None]
    forces = generator.normal(size=(FRAMES * ATOMS, 3))
    frames = [
        replace(
            bare_frame(
                NUMBERS, generator.normal(size=(4, 3)), np.zeros((3, 3)), np.zeros(3, bool),
                source="made",
            ),
            energy=-100 + float(energy[s]),
            forces=forces[s * ATOMS : (s + 1) * ATOMS],
        )
        for s in range(FRAMES)
    ]  # fmt: skip
    energy_variance = torch.full((FRAMES,), 8.0, dtype=torch.float64)
    covariance = torch.from_numpy(ratio[:, :, None] ** 2 * np.eye(3)) / 2
    prediction = Prediction(
        energy=Uncertain(torch.full_like(energy_variance, -100), energy_variance, energy_variance),
        forces=Uncertain(torch.zeros(FRAMES * ATOMS, 3).double(), covariance, covariance),
        stress=None,
        atomic_energy=torch.zeros(FRAMES * ATOMS),
        structure_index=torch.arange(FRAMES).repeat_interleave(ATOMS),
    )
    return frames, prediction


def part(frames: Sequence[Frame], prediction: Prediction, start: int, stop: int) -> Prediction:
    def cut(value: Uncertain, scale: int) -> Uncertain:
        where = slice(start * scale, stop * scale)
        return Uncertain(value.mean[where], value.aleatoric[where], value.epistemic[where])

    return Prediction(
        cut(prediction.energy, 1),
        cut(prediction.forces, ATOMS),
        None,
        prediction.atomic_energy[start * ATOMS : stop * ATOMS],
        prediction.structure_index[start * ATOMS : stop * ATOMS] - start,
    )


@pytest.mark.parametrize("method", list(RECALIBRATIONS))
def test_every_method_finds_the_energy_factor(method: str) -> None:
    frames, prediction = make_set()
    found = fit_calibration([(frames, prediction)], method=method)
    assert found.method == method
    assert found.energy is not None
    assert found.energy.factor == pytest.approx(0.25, rel=0.1)
    assert found.energy.count == FRAMES
    assert found.forces is not None
    assert found.forces.count == 3 * ATOMS * FRAMES
    assert found.stress is None
    assert found.frames == FRAMES
    assert found.fingerprint == fingerprint(frames)
    found.apply(prediction, np.tile(NUMBERS, FRAMES))


def test_elements_get_their_own_factor() -> None:
    frames, prediction = make_set()
    found = fit_calibration([(frames, prediction)], method="scale-element")
    assert found.forces is not None
    assert found.energy is not None
    expected = {z: 1 / ratio for z, ratio in WRONG.items()}
    assert found.forces.by_element == pytest.approx(expected, rel=0.05)
    assert found.energy.by_element == {}


def test_batches_do_not_matter() -> None:
    frames, prediction = make_set()
    whole = fit_calibration([(frames, prediction)], method="isotonic")
    batches = [
        (frames[a:b], part(frames, prediction, a, b)) for a, b in ((0, 100), (100, 101), (101, 500))
    ]
    assert fit_calibration(batches, method="isotonic") == whole


def test_missing_labels_are_left_out() -> None:
    frames, prediction = make_set()
    some = [replace(f, energy=None) if i % 2 else f for i, f in enumerate(frames)]
    found = fit_calibration([(some, prediction)], method="scale")
    assert found.energy is not None
    assert found.energy.count == FRAMES // 2
    without = [replace(f, forces=None) for f in frames]
    assert fit_calibration([(without, prediction)], method="scale").forces is None


def test_quantities_without_sigma_are_left_as_they_are() -> None:
    frames, prediction = make_set()
    zeros = torch.zeros_like(prediction.forces.aleatoric)
    only_energy = replace(prediction, forces=Uncertain(prediction.forces.mean, zeros, zeros))
    found = fit_calibration([(frames, only_energy)], method="conformal")
    assert found.forces is None
    assert found.energy is not None
    zero = torch.zeros(FRAMES, dtype=torch.float64)
    nothing = replace(only_energy, energy=Uncertain(prediction.energy.mean, zero, zero))
    with pytest.raises(ValueError, match="nothing to calibrate; train with a likelihood"):
        fit_calibration([(frames, nothing)], method="scale")


def test_what_is_refused() -> None:
    frames, prediction = make_set()
    known = r"recalibration 'platt' is unknown; there are conformal, .*scale-rms\. Others come"
    with pytest.raises(ValueError, match=known):
        fit_calibration([(frames, prediction)], method="platt")
    with pytest.raises(ValueError, match="no frames to calibrate on"):
        fit_calibration([], method="scale")
    calibrated = fit_calibration([(frames, prediction)], method="isotonic").apply(prediction)
    with pytest.raises(ValueError, match="calibrated already; fit to the raw ones"):
        fit_calibration([(frames, calibrated)], method="scale")


def test_the_interval_counts_structures() -> None:
    """Forces that a structure shares leave the factor as uncertain as its structures are few."""
    frames, prediction = make_set()
    free = fit_calibration([(frames, prediction)], method="scale")
    shared = [replace(f, forces=np.full((ATOMS, 3), float(np.ravel(f.forces)[0]))) for f in frames]
    unit = torch.eye(3, dtype=torch.float64).expand(FRAMES * ATOMS, 3, 3) / 2
    plain = replace(prediction, forces=replace(prediction.forces, aleatoric=unit, epistemic=unit))
    tied = fit_calibration([(shared, plain)], method="scale")
    for found in (free.energy, tied.forces):
        assert found is not None
        assert found.interval is not None
        low, high = found.interval
        assert low < found.factor < high
        # 90 % of a factor from n structures: ± 1.645 / √(2 n)
        assert (high - low) / found.factor == pytest.approx(3.29 / (2 * FRAMES) ** 0.5, rel=0.25)
    again = Calibration.from_json(json.loads(json.dumps(free.to_json())))
    assert again == free


def test_a_frame_that_carries_the_errors_is_named(caplog: pytest.LogCaptureFixture) -> None:
    frames, prediction = make_set()
    fit_calibration([(frames, prediction)], method="scale")
    assert not caplog.records
    gross = [*frames[:7], replace(frames[7], energy=-100 + 160.0, index=7), *frames[8:50]]
    few = part(gross, prediction, 0, 50)
    found = fit_calibration([(gross, few)], method="scale")
    followed = fit_calibration([(gross, few)], method="scale-rms")
    assert (
        "calibration of the energy: one of 50 frames (made, frame 7) carries 100 %" in caplog.text
    )
    assert "of the forces" not in caplog.text
    assert found.energy is not None
    assert followed.energy is not None
    assert found.energy.factor == pytest.approx(0.25, rel=0.2)
    assert followed.energy.factor > 5
