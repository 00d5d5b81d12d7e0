from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ase.build import bulk, molecule

from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.core.prediction import ErrorDistribution
from bayrace.data.frame import frame_from_atoms
from bayrace.data.split import frame_hashes
from bayrace.evaluate.evaluation import evaluate
from bayrace.evaluate.judged import judge, judge_frames
from bayrace.models.noise import NO_NOISE


@pytest.fixture(scope="module")
def frames():
    """Water and methanol in turns; the first has no energy, the second no forces."""
    random = np.random.default_rng(0)
    result = []
    for index in range(4):
        atoms = molecule("CH3OH" if index % 2 else "H2O")
        atoms.positions += 0.05 * random.normal(size=atoms.positions.shape)
        frame = frame_from_atoms(atoms, keys=None, source="made", index=10 + index)
        forces = random.normal(size=atoms.positions.shape)
        result.append(
            replace(
                frame,
                energy=None if index == 0 else float(random.normal()),
                forces=None if index == 1 else forces,
            )
        )
    return result


@pytest.fixture(scope="module")
def potential(make_potential):
    return make_potential(seeds=(0, 1))


def test_numbers_keep_their_structures_and_atoms(potential, frames):
    judged = judge_frames(potential, frames, name="made", role="test")
    assert judged.energy.frame.tolist() == [1, 2, 3]
    assert judged.forces.frame.tolist() == [0] * 9 + [2] * 9 + [3] * 18
    assert judged.forces.atom.tolist() == [n // 3 for n in [*range(9), *range(9), *range(18)]]
    assert judged.forces.number[:9].tolist() == [8] * 3 + [1] * 6
    prediction = potential.predict(frames)
    np.testing.assert_allclose(judged.energy.mean, prediction.energy.mean[1:])
    np.testing.assert_allclose(judged.forces.label[:9], frames[0].forces.ravel())
    trace = prediction.forces.total.diagonal(dim1=-2, dim2=-1).mean(-1).sqrt()
    np.testing.assert_allclose(judged.force_std, trace)
    assert judged.stress.size == 0
    assert not judged.recalibrated
    assert judged.starts.tolist() == [0, 3, 9, 12, 18]


def test_intervals_are_those_of_the_prediction(potential, frames):
    shape = ErrorDistribution((-3.0, -1.0, 0.5, 2.0), (0.0, 0.2, 0.7, 1.0))
    calibration = Calibration("isotonic", Recalibration(2.0, 9, shape), None, None, 3, "")
    calibrated = replace(potential, calibration=calibration)
    judged = judge_frames(calibrated, frames, name="made", role="test")
    low, high = calibrated.predict(frames).energy.interval(0.9)
    np.testing.assert_allclose(judged.energy.low, low[1:])
    np.testing.assert_allclose(judged.energy.high, high[1:])
    inside = (judged.energy.pit >= 0.05) & (judged.energy.pit <= 0.95)
    np.testing.assert_array_equal(judged.energy.inside, inside)
    np.testing.assert_allclose(judged.energy.std, 2 * judged.raw_energy.std)
    np.testing.assert_allclose(judged.forces.std, judged.raw_forces.std)
    plain = judge_frames(potential, frames, name="made", role="test")
    np.testing.assert_allclose(judged.raw_energy.low, plain.energy.low)


def test_a_potential_without_noise(make_potential, frames):
    judged = judge_frames(make_potential(noise=NO_NOISE), frames, name="made", role="test")
    assert not judged.uncertain
    assert judged.scores == {}
    assert judged.forces.rmse > 0


def test_frames_that_were_trained_on_are_counted(potential, frames):
    seen = {"train": frame_hashes(frames[:3]), "valid": frame_hashes(frames[3:])}
    judged = judge_frames(replace(potential, frames=seen), frames[1:], name="made", role="test")
    assert judged.seen == {"train": 2, "valid": 1}


def test_stress_of_periodic_structures(make_potential):
    atoms = bulk("C", cubic=True)
    frame = replace(
        frame_from_atoms(atoms, keys=None), stress=np.arange(6.0), forces=np.zeros((8, 3))
    )
    judged = judge_frames(make_potential(), [frame, frame], name="bulk", role="test")
    assert judged.stress.frame.tolist() == [0] * 6 + [1] * 6
    assert judged.energy.size == 0


def test_frames_of_another_set_are_refused(potential, frames):
    evaluation = evaluate(potential, frames, name="made")
    with pytest.raises(ValueError, match="3 frames and an evaluation of 4; give the frames"):
        judge(evaluation, frames[1:], role="test")
