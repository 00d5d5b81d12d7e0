from __future__ import annotations

import numpy as np
import pytest

from bayrace.data.frame import Frame
from bayrace.evaluate.evaluation import Compared, evaluate
from bayrace.report import figures

SIGNATURE = b"\x89PNG"


def frames(count=6, *, energies=True):
    random = np.random.default_rng(0)
    numbers = np.array([6, 8, 1, 1])
    base = np.array([[0.0, 0, 0], [1.2, 0, 0], [-0.6, 0.9, 0], [-0.6, -0.9, 0]])
    return [
        Frame(
            numbers=numbers,
            positions=base + 0.05 * random.normal(size=base.shape),
            cell=np.zeros((3, 3)),
            pbc=np.zeros(3, dtype=bool),
            energy=float(random.normal()) if energies else None,
            forces=random.normal(size=(4, 3)),
            stress=None,
            config_type="Default",
            weight=1.0,
            source="made.xyz",
            index=index,
        )
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def evaluations(make_potential):
    potential = make_potential()
    return [
        evaluate(potential, frames(), name="all labels"),
        evaluate(potential, frames(energies=False), name="forces only"),
    ]


def test_an_evaluation_keeps_what_the_potential_said(make_potential, evaluations):
    potential, given = make_potential(), frames()
    prediction = potential.predict(given)
    first = evaluations[0]
    np.testing.assert_allclose(first.forces.mean, prediction.forces.mean)
    np.testing.assert_allclose(first.energy.std, prediction.energy.std)
    np.testing.assert_array_equal(first.energy.label, [frame.energy for frame in given])
    np.testing.assert_allclose(first.energy_per_atom.mean, prediction.energy.mean / 4)
    assert first.accuracy.total.forces.count == 6 * 12
    assert first.stress.known().label.size == 0
    assert first.to_json()["predicted_std"]["stress"] is None


def test_missing_labels_are_left_out(evaluations):
    second = evaluations[1]
    assert second.energy.known().label.size == 0
    assert second.energy.spread() is None
    assert second.to_json()["energy"] is None


def test_the_spread_is_the_root_mean_square_of_labelled_numbers():
    std, mean = np.array([3.0, 100.0, 4.0]), np.array([1.0, 2.0, 3.0])
    label = np.array([0.0, np.nan, 1.0])
    compared = Compared(label, mean, std, aleatoric=std, epistemic=0 * std, pit=0 * std)
    assert compared.spread() == pytest.approx(np.sqrt(12.5))
    assert compared.spread(np.array([True, True, False])) == 3.0
    assert compared.spread(np.array([False, True, False])) is None


@pytest.mark.parametrize(
    "draw", [figures.parity, figures.error_against_spread, figures.spread_histograms]
)
def test_figures_of_evaluations_are_written(evaluations, tmp_path, draw):
    path = figures.save(draw(evaluations), tmp_path / "new" / "figure.png")
    assert path.read_bytes()[:4] == SIGNATURE


def test_the_energy_panel_is_empty_without_energies(evaluations):
    left, right = figures.parity(evaluations[1:]).axes
    assert left.collections[0].get_offsets().shape[0] == 0
    assert right.collections[0].get_offsets().shape[0] == 6 * 12


@pytest.mark.parametrize("offset", [5.0, -5.0])  # a likelihood may be negative
def test_learning_curves(tmp_path, offset):
    history = [
        {
            "epoch": epoch,
            "learning_rate": 0.01,
            "train": {"loss": 1 / epoch + offset},
            **({"valid": {"loss": 2 / epoch + offset, "forces_mae": 9 / epoch}} if even else {}),
        }
        for epoch in range(1, 9)
        for even in [epoch % 2 == 0]
    ]
    figure = figures.learning_curves(history)
    assert figure.axes[0].get_yscale() == ("log" if offset > 0 else "linear")
    valid = figure.axes[0].lines[1]
    np.testing.assert_array_equal(valid.get_xdata(), [2, 4, 6, 8])
    assert figures.save(figure, tmp_path / "curves.png").is_file()
