"""Atoms closer than any in the training data: smooth, bounded, repulsive; the rest is unchanged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.data.batch import repeated
from bayrace.data.frame import Frame
from bayrace.models.derivatives import evaluate
from bayrace.models.race.network import Race
from bayrace.models.race.short_range import MARGIN, SOFT, short_range
from bayrace.testing import check_derivatives, check_symmetries, graph_of, random_frame
from bayrace.testing.structures import small_spec

ELEMENTS = (1, 6, 8)
CELL = np.array([[3.1, 0, 0], [0.6, 2.9, 0], [0.2, -0.5, 3.3]])  # Å, shorter than the cutoff
WITHOUT = small_spec(ELEMENTS)
SHORTEST = ((0.7, 1.0, 0.9), (1.0, 1.4, 1.3), (0.9, 1.3, 0.0))  # Å; two oxygens never met
WITH = replace(WITHOUT, shortest=SHORTEST)


def dimer(first: int, second: int, distance: float) -> Frame:
    frame = random_frame((first, second), 2, seed=0)
    numbers = np.array([first, second])
    return replace(frame, numbers=numbers, positions=np.array([[0.0, 0, 0], [0, 0, distance]]))


def seen(frame: Frame) -> tuple[float, float]:
    """The distance that the network sees of two atoms, Å, and their repulsion, eV."""
    batch = graph_of(Race(WITH), frame)
    true = np.linalg.norm(np.diff(frame.positions, axis=0))
    found = short_range(WITH, torch.tensor([true], dtype=torch.float64), batch)
    return float(found.distance), 0.0 if found.energy is None else float(found.energy.sum())


def zbl(distance: float) -> float:
    """Of carbon and hydrogen, eV, by hand."""
    x = distance / (0.4685 / (6**0.23 + 1))
    weights, rates = (0.18175, 0.50986, 0.28022, 0.02817), (3.1998, 0.94229, 0.4029, 0.20162)
    screening = sum(w * np.exp(-rate * x) for w, rate in zip(weights, rates, strict=True))
    return float(14.3996454785 * 6 / distance * screening)


def test_where_there_are_data_nothing_changes() -> None:
    models = Race(WITH), Race(WITHOUT)
    params = models[0].init(0, dtype=torch.float64)
    for frame in (dimer(6, 1, 1.0 - MARGIN), dimer(8, 8, 0.5), dimer(6, 6, 3.0)):
        batch = graph_of(models[0], frame)
        one, other = (evaluate(model, params, batch) for model in models)
        assert torch.equal(one.energy, other.energy)
        assert torch.equal(one.forces, other.forces)


@pytest.mark.parametrize("distance", [0.94, 0.8, 0.5])
def test_the_repulsion_is_what_zbl_has_beyond_its_parabola(distance: float) -> None:
    start, step = 1.0 - MARGIN, 1e-3
    values = [zbl(start + k * step) for k in (-1, 0, 1)]
    slope = (values[2] - values[0]) / (2 * step)
    curvature = (values[2] - 2 * values[1] + values[0]) / step**2
    away = distance - start
    expected = zbl(distance) - (values[1] + slope * away + curvature / 2 * away**2)
    assert seen(dimer(6, 1, distance))[1] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_the_distance_that_is_seen_falls_and_ends() -> None:
    start = 1.0 - MARGIN
    distances = np.linspace(start, 0.05, 200)
    found = np.array([seen(dimer(6, 1, float(d)))[0] for d in distances])
    assert (np.diff(found) < 0).all()
    assert found[0] == start
    assert found[-1] > start - SOFT
    near = start - 0.03  # as it is, but for the fourth order
    expected = near + SOFT * (0.03 / SOFT) ** 4 / 3
    assert seen(dimer(6, 1, near))[0] == pytest.approx(expected, abs=2e-6)


def test_two_continuous_derivatives_where_it_begins() -> None:
    model = Race(WITH)
    params = model.init(0, dtype=torch.float64)

    def force(distance: float) -> float:
        batch = graph_of(model, dimer(6, 1, distance))
        return float(evaluate(model, params, batch).forces[:, 2].abs().max())

    start = 1.0 - MARGIN
    for step in (1e-3, 1e-5):  # the third derivative jumps, by some hundred eV/Å³
        above = (force(start + step) - force(start)) / step
        below = (force(start) - force(start - step)) / step
        assert abs(below - above) < 1000 * step


def test_close_atoms_are_driven_apart() -> None:
    """Down to a fifth of an ångström, whatever a network of random weights says."""
    model = Race(WITH)
    for seed in range(3):
        params = model.init(seed, dtype=torch.float64)
        pushes = []
        for distance in (0.6, 0.4, 0.3, 0.2):
            batch = graph_of(model, dimer(6, 1, distance))
            forces = evaluate(model, params, batch).forces[batch.file_order]
            pushes.append(float(forces[1, 2]))
        assert pushes[0] > 0
        assert (np.diff(pushes) > 0).all()


CLOSE = replace(WITH, shortest=((1.6,) * 3,) * 3)  # so that many pairs are too close


@pytest.mark.parametrize("cell", [None, CELL])
def test_symmetries_and_derivatives(cell: np.ndarray | None) -> None:
    model = Race(CLOSE)
    params = model.init(1, dtype=torch.float64)
    frame = random_frame(ELEMENTS, 4 if cell is None else 2, seed=3, cell=cell)
    assert short_range(CLOSE, torch.tensor([1.2]), graph_of(model, dimer(1, 1, 1.2))).energy.any()
    check_symmetries(model, params, frame)
    check_derivatives(model, params, frame)


def test_members_side_by_side_transforms_and_folded_weights_agree() -> None:
    """Inside a transform numbers cannot be looked at, and members have species of their own."""
    spec = replace(WITH, radial_knots=16)
    model = Race(spec)
    far, near = random_frame(ELEMENTS, 5, seed=5, apart=1.5), dimer(6, 1, 0.7)
    members = [model.init(seed, dtype=torch.float64) for seed in range(2)]
    stacked = {name: torch.stack([member[name] for member in members]) for name in members[0]}
    for frame in (far, near):
        batch = graph_of(model, frame)
        expected = torch.stack([model.energy(member, batch).energy for member in members])
        inside = torch.func.vmap(lambda one, b=batch: model.energy(one, b).energy)(stacked)
        torch.testing.assert_close(inside, expected)
        folded = torch.func.vmap(model.fold)(stacked)
        together = model.energy(folded, repeated(batch, 2)).energy
        torch.testing.assert_close(together.reshape(2, -1), expected)


def test_a_distance_for_every_two_elements_or_none() -> None:
    with pytest.raises(ValueError, match="give one distance for every two"):
        small_spec(ELEMENTS, shortest=((0.3,),))
