"""Evaluations of random potentials on labels drawn from their own predictions: known answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase.build import molecule
from scipy import stats

from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.calibrate.fit import fit_calibration
from bayrace.core.prediction import Prediction, Uncertain
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.evaluate.evaluation import evaluate, evaluate_predictions
from bayrace.evaluate.metrics.calibration import calibration_error, central_mass, ellipsoid_mass
from bayrace.evaluate.metrics.ood import detections
from bayrace.models.noise import NO_NOISE
from bayrace.potential.potential import Potential


def structures(count: int, *, seed: int = 0, periodic: bool = False) -> list[Frame]:
    generator = np.random.default_rng(seed)
    frames = []
    for index in range(count):
        atoms = molecule("CH3OH" if index % 2 else "H2O", cell=[6.0] * 3, pbc=periodic)
        atoms.positions += generator.normal(scale=0.1, size=atoms.positions.shape)
        frame = frame_from_atoms(atoms, keys=None, index=index)
        frames.append(replace(frame, config_type="alcohol" if index % 2 else "water"))
    return frames


def labelled(potential: Potential, frames: Sequence[Frame], *, seed: int = 0) -> list[Frame]:
    """Labels drawn from the predicted distribution, so that its uncertainties are right."""
    generator = np.random.default_rng(seed)
    result = []
    for frame in frames:
        prediction = potential.predict(frame)
        energy = prediction.energy
        noise = generator.normal() * float(energy.std[0])
        root = np.linalg.cholesky(prediction.forces.total.numpy())
        push = np.einsum("nij,nj->ni", root, generator.normal(size=(len(frame.numbers), 3)))
        forces = prediction.forces.mean.numpy() + push
        result.append(replace(frame, energy=float(energy.mean[0]) + noise, forces=forces))
    return result


@pytest.fixture(scope="module")
def potential(make_potential) -> Potential:
    return make_potential(seeds=(0, 1, 2))


@pytest.fixture(scope="module")
def frames(potential) -> list[Frame]:
    return labelled(potential, structures(300))


@pytest.fixture(scope="module")
def evaluation(potential, frames):
    return evaluate(potential, frames, name="own", edge_budget=500)


def test_own_predictions_are_calibrated(evaluation) -> None:
    """3 σ of the noise of CE, 1/(6 n) for n independent numbers."""
    found = evaluation.uncertainty()
    assert found["energy"].calibration_error < 4 / (6 * 300)
    atoms = len(evaluation.numbers)
    assert found["forces"].calibration_error < 4 / (6 * atoms)
    assert evaluation.whitened().calibration_error < 4 / (6 * atoms)
    assert found["forces"].count == 3 * atoms
    assert found["stress"] is None


def test_numbers_are_those_of_the_prediction(potential, frames, evaluation) -> None:
    prediction = potential.predict(frames)
    energy = evaluation.energy
    np.testing.assert_allclose(energy.std**2, prediction.energy.total, rtol=1e-9)
    np.testing.assert_allclose(energy.epistemic**2, prediction.energy.epistemic, rtol=1e-6)
    np.testing.assert_allclose(energy.aleatoric**2 + energy.epistemic**2, energy.std**2)
    pit = stats.norm.cdf(-evaluation.forces.error / evaluation.forces.std)
    np.testing.assert_allclose(evaluation.forces.pit, pit, atol=1e-12)
    covariance = prediction.forces.total.numpy()
    error = evaluation.forces.error
    direct = np.einsum("ni,nij,nj->n", error, np.linalg.inv(covariance), error)
    np.testing.assert_allclose(evaluation.distances.squared, direct, rtol=1e-6)
    np.testing.assert_allclose(
        evaluation.distances.logdet, np.linalg.slogdet(covariance)[1], rtol=1e-6, atol=1e-6
    )
    per_atom = evaluation.energy_per_atom
    np.testing.assert_array_equal(per_atom.pit, energy.pit)
    np.testing.assert_allclose(per_atom.epistemic * evaluation.atom_counts, energy.epistemic)


def test_json_has_every_group(evaluation) -> None:
    content = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    found = content["uncertainty"]
    assert set(found) == {"energy", "forces", "stress", "forces_by_element", "by_config_type"}
    assert set(found["forces_by_element"]) == {"1", "6", "8"}
    assert set(found["by_config_type"]) == {"alcohol", "water"}
    counts = [each["count"] for each in found["forces_by_element"].values()]
    assert sum(counts) == found["forces"]["count"] == 3 * len(evaluation.numbers)
    water = found["by_config_type"]["water"]
    assert water["energy"]["count"] == 150
    assert water["forces"]["whitened"]["count"] == 450
    carbon = evaluation.numbers == 6
    expected = calibration_error(central_mass(evaluation.forces.pit[carbon]))
    assert found["forces_by_element"]["6"]["calibration_error"] == pytest.approx(expected)


def test_potentials_without_noise_have_no_metrics_of_it(make_potential, frames) -> None:
    point = make_potential(noise=NO_NOISE)
    found = evaluate(point, frames[:4], name="certain")
    assert not found.energy.std.any()
    text = json.dumps(found.to_json(), allow_nan=False)
    content = json.loads(text)
    assert content["uncertainty"]["energy"] is None
    assert content["uncertainty"]["forces"] is None
    assert content["uncertainty"]["by_config_type"]["water"]["forces"] is None
    assert content["predicted_std"]["energy"] is None
    assert content["forces"]["rmse"] > 0
    scores = found.scores()
    assert set(detections(scores, scores).values()) == {None}


def test_few_members_have_no_whitened_metrics(make_potential, frames) -> None:
    pair = make_potential(noise=NO_NOISE, seeds=(0, 1))  # covariances of rank one
    found = evaluate(pair, frames[:4], name="pair")
    assert found.forces.quality() is not None
    assert found.whitened() is None
    assert found.to_json()["uncertainty"]["forces"]["whitened"] is None


def test_missing_labels(potential, frames) -> None:
    some = [replace(frames[0], energy=None), replace(frames[1], forces=None), frames[2]]
    found = evaluate(potential, some, name="some")
    assert found.energy.quality().count == 2
    assert found.whitened().count == len(frames[0].numbers) + len(frames[2].numbers)
    none = [replace(frame, energy=None) for frame in some]
    assert evaluate(potential, none, name="none").energy.quality() is None


def test_calibration_is_applied_and_can_be_left_out(potential, frames, evaluation) -> None:
    wide = Calibration("scale", Recalibration(3.0, 9), Recalibration(0.5, 9), None, 3, "")
    calibrated = replace(potential, calibration=wide)
    found = evaluate(calibrated, frames[:6], name="wide")
    np.testing.assert_allclose(found.energy.std, 3 * evaluation.energy.std[:6])
    np.testing.assert_array_equal(found.energy.mean, evaluation.energy.mean[:6])
    atoms = len(found.numbers)
    squared = evaluation.distances.squared[:atoms]
    np.testing.assert_allclose(found.distances.squared, 4 * squared, rtol=1e-9)
    raw = evaluate(calibrated, frames[:6], name="raw", calibrated=False)
    np.testing.assert_array_equal(raw.energy.std, evaluation.energy.std[:6])


def test_scores_per_structure(evaluation) -> None:
    scores = evaluation.scores()
    assert {name: score.shape for name, score in scores.items()} == dict.fromkeys(
        (
            "energy_total",
            "energy_epistemic",
            "forces_mean_total",
            "forces_max_total",
            "forces_mean_epistemic",
            "forces_max_epistemic",
        ),
        (300,),
    )
    np.testing.assert_allclose(
        scores["energy_total"], evaluation.energy.std / np.sqrt(evaluation.atom_counts)
    )
    assert (scores["forces_max_total"] >= scores["forces_mean_total"]).all()


def test_stress_is_judged_where_it_is_predicted(make_potential) -> None:
    potential = make_potential()
    frames = structures(6, periodic=True)
    prediction = potential.predict(frames, stress=True)
    assert prediction.stress is not None
    given = [
        replace(frame, stress=stress + 0.01)
        for frame, stress in zip(frames, prediction.stress.mean.numpy(), strict=True)
    ]
    found = evaluate(potential, given, name="stress").stress.quality()
    assert found is not None
    assert found.count == 36
    torch.testing.assert_close(prediction.stress.std.isnan().any(), torch.tensor(False))


def test_ellipsoids_follow_the_recalibrated_errors() -> None:
    """Force vectors of Student's t: right by the distribution that was found, wrong by χ²₃."""
    random, count = np.random.default_rng(0), 4000
    radius = np.sqrt(3 / random.chisquare(3, size=count))
    errors = random.normal(size=(count, 3)) * radius[:, None]
    sample = structures(2)[0]
    atoms = len(sample.numbers)
    whole = errors[: count - count % atoms].reshape(-1, atoms, 3)
    frames = [replace(sample, energy=0.0, forces=each) for each in whole]
    total = len(frames) * atoms
    unit = torch.eye(3, dtype=torch.float64).expand(total, 3, 3) / 2
    flat = torch.zeros(len(frames), dtype=torch.float64)
    raw = Prediction(
        energy=Uncertain(flat, flat, flat),
        forces=Uncertain(torch.zeros(total, 3, dtype=torch.float64), unit, unit),
        stress=None,
        atomic_energy=torch.zeros(total, dtype=torch.float64),
        structure_index=torch.arange(len(frames)).repeat_interleave(atoms),
    )
    calibrated = fit_calibration([(frames, raw)], method="isotonic").apply(raw)
    found = evaluate_predictions([(frames, calibrated)], frames, name="made")
    gaussian = calibration_error(ellipsoid_mass(found.distances.squared))
    assert gaussian > 5e-3
    assert found.whitened().calibration_error < gaussian / 20
