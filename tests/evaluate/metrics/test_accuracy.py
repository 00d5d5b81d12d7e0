"""Known answers for MAE, RMSE and R², missing labels and groups."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from bayrace.core.prediction import Prediction, Uncertain
from bayrace.data.frame import Frame
from bayrace.evaluate.metrics.accuracy import accuracy, errors


def make_frame(
    numbers: list[int],
    *,
    energy: float | None = None,
    forces: np.ndarray | None = None,
    stress: np.ndarray | None = None,
    config_type: str = "Default",
) -> Frame:
    count = len(numbers)
    return Frame(
        numbers=np.array(numbers, dtype=np.int64),
        positions=np.arange(3.0 * count).reshape(count, 3),
        cell=np.eye(3) * 10,
        pbc=np.ones(3, dtype=bool),
        energy=energy,
        forces=forces,
        stress=stress,
        config_type=config_type,
        weight=1.0,
        source="made.xyz",
        index=0,
    )


def make_prediction(
    counts: list[int], energy: list[float], forces: np.ndarray, stress: np.ndarray | None = None
) -> Prediction:
    def certain(mean: np.ndarray, covariance: tuple[int, ...]) -> Uncertain:
        zeros = torch.zeros(covariance, dtype=torch.float64)
        return Uncertain(torch.from_numpy(mean), zeros, zeros)

    structures, atoms = len(counts), sum(counts)
    return Prediction(
        energy=certain(np.array(energy), (structures,)),
        forces=certain(forces, (atoms, 3, 3)),
        stress=None if stress is None else certain(stress, (structures, 6, 6)),
        atomic_energy=torch.zeros(atoms, dtype=torch.float64),
        structure_index=torch.repeat_interleave(torch.tensor(counts)),
    )


def test_errors_known_answer() -> None:
    found = errors(np.array([1.0, 2.0, 3.0, np.nan]), np.array([1.0, 2.0, 6.0, 100.0]))
    assert found.count == 3
    assert found.mae == pytest.approx(1.0)
    assert found.rmse == pytest.approx(math.sqrt(3.0))
    assert found.r2 == pytest.approx(1.0 - 9.0 / 2.0)


def test_r2_is_one_for_exact_and_zero_for_the_mean() -> None:
    labels = np.random.default_rng(0).normal(size=(50, 3))
    assert errors(labels, labels.copy()).r2 == 1.0
    assert errors(labels, np.full_like(labels, labels.mean())).r2 == pytest.approx(0.0, abs=1e-12)


def test_large_energies_keep_their_digits() -> None:
    labels = -17_660.0 + np.array([0.0, 1e-3, 2e-3])
    found = errors(labels, labels + 1e-4)
    assert found.mae == pytest.approx(1e-4, rel=1e-6)
    assert found.r2 == pytest.approx(1.0 - 1e-8 / np.var([0.0, 1e-3, 2e-3]), rel=1e-6)


def test_groups_and_missing_labels() -> None:
    force_errors = np.zeros((5, 3))
    force_errors[0] = 3.0  # an oxygen
    force_errors[2:4] = 1.0  # hydrogens
    labels = np.random.default_rng(1).normal(size=(5, 3))
    first = make_frame([8, 1], energy=-10.0, forces=labels[:2], config_type="cold")
    second = make_frame([1, 1], forces=labels[2:4], stress=np.full(6, 0.5), config_type="hot")
    third = make_frame([6], energy=-2.0, config_type="hot")  # energy only
    batches = [
        (
            [first, second],
            make_prediction(
                [2, 2], [-9.0, 7.0], (labels + force_errors)[:4], np.full((2, 6), 0.25)
            ),
        ),
        ([third], make_prediction([1], [-4.0], np.full((1, 3), 50.0), np.zeros((1, 6)))),
    ]
    result = accuracy(batches)
    assert result.frames == 3
    assert result.total.energy is not None
    assert result.total.energy.count == 2
    assert result.total.energy.mae == pytest.approx(1.5)
    assert result.total.energy_per_atom is not None
    assert result.total.energy_per_atom.mae == pytest.approx((0.5 + 2.0) / 2)
    assert result.total.forces is not None
    assert result.total.forces.count == 12
    assert result.total.forces.mae == pytest.approx((3 * 3 + 6 * 1) / 12)
    assert result.total.stress is not None
    assert result.total.stress.count == 6
    assert result.total.stress.mae == pytest.approx(0.25)
    assert list(result.forces_by_element) == [1, 8]  # carbon has no force label
    assert result.forces_by_element[8].mae == pytest.approx(3.0)
    assert result.forces_by_element[1].mae == pytest.approx(6 / 9)
    assert result.by_config_type["cold"].energy is not None
    assert result.by_config_type["cold"].energy.mae == pytest.approx(1.0)
    assert result.by_config_type["cold"].stress is None
    assert result.by_config_type["hot"].forces is not None
    assert result.by_config_type["hot"].forces.count == 6


def test_energy_offsets_are_not_removed() -> None:
    frames = [make_frame([1], energy=value) for value in (1.0, 2.0, 3.0)]
    result = accuracy([(frames, make_prediction([1, 1, 1], [11.0, 12.0, 13.0], np.zeros((3, 3))))])
    assert result.total.energy is not None
    assert result.total.energy.mae == pytest.approx(10.0)


def test_nan_predictions_show() -> None:
    frames = [make_frame([1], energy=1.0), make_frame([1], energy=2.0)]
    result = accuracy([(frames, make_prediction([1, 1], [1.0, math.nan], np.zeros((2, 3))))])
    assert result.total.energy is not None
    assert math.isnan(result.total.energy.mae)


def test_stress_that_was_not_predicted_is_not_scored() -> None:
    frames = [make_frame([1], energy=1.0, stress=np.ones(6))]
    result = accuracy([(frames, make_prediction([1], [1.0], np.zeros((1, 3))))])
    assert result.total.stress is None


def test_json_is_strict() -> None:
    frames = [make_frame([1], energy=1.0)]
    result = accuracy([(frames, make_prediction([1], [1.5], np.zeros((1, 3))))])
    text = json.dumps(result.to_json(), allow_nan=False)  # R² of one label is nan
    assert json.loads(text)["energy"] == {"count": 1, "mae": 0.5, "rmse": 0.5, "r2": None}
    assert json.loads(text)["forces"] is None


def test_mismatched_frames_are_refused() -> None:
    prediction = make_prediction([1, 1], [1.0, 2.0], np.zeros((2, 3)))
    with pytest.raises(ValueError, match="1 frames and predictions of 2 structures"):
        accuracy([([make_frame([1])], prediction)])
    with pytest.raises(ValueError, match="no frames to evaluate"):
        accuracy([])
    with pytest.raises(ValueError, match="every label is missing"):
        errors(np.array([np.nan]), np.array([1.0]))
    with pytest.raises(ValueError, match=r"labels of shape \(2,\) and predictions of shape \(3,\)"):
        errors(np.zeros(2), np.zeros(3))
