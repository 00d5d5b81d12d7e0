"""The known repulsion of close atoms: its formula, its end, and its place in the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.data.frame import Frame, covalent_radii
from bayrace.model.derivatives import evaluate
from bayrace.model.race import Race
from bayrace.model.repulsion import repulsion
from bayrace.testing import check_derivatives, check_symmetries, graph_of, random_frame
from bayrace.testing.structures import small_spec

ELEMENTS = (1, 6, 8)
CELL = np.array([[3.1, 0, 0], [0.6, 2.9, 0], [0.2, -0.5, 3.3]])  # Å, shorter than the cutoff
WITHOUT = small_spec(ELEMENTS)
WITH = replace(WITHOUT, repulsion_radii=covalent_radii(ELEMENTS))


def dimer(first: int, second: int, distance: float) -> Frame:
    frame = random_frame((first, second), 2, seed=0)
    numbers = np.array([first, second])
    return replace(frame, numbers=numbers, positions=np.array([[0.0, 0, 0], [0, 0, distance]]))


def energy_of(frame: Frame) -> torch.Tensor:
    batch = graph_of(Race(WITH), frame)
    vectors = batch.positions[batch.edges[1]] - batch.positions[batch.edges[0]]
    return repulsion(WITH, vectors.norm(dim=-1)[batch.pair_edges[0]], batch)


def test_energy_is_that_of_ziegler_biersack_and_littmark() -> None:
    """Carbon and hydrogen at 0.3 Å, by hand."""
    x = 0.3 / (0.4685 / (6**0.23 + 1))
    weights, rates = (0.18175, 0.50986, 0.28022, 0.02817), (3.1998, 0.94229, 0.4029, 0.20162)
    screening = sum(w * np.exp(-rate * x) for w, rate in zip(weights, rates, strict=True))
    y = 0.3 / (0.76 + 0.31)
    envelope = 1 - 28 * y**6 + 48 * y**7 - 21 * y**8
    expected = 14.3996454785 * 6 / 0.3 * screening * envelope
    atoms = energy_of(dimer(6, 1, 0.3))
    assert atoms.tolist() == pytest.approx([expected / 2, expected / 2], rel=1e-6)


def test_nothing_is_left_where_atoms_are_bonded_or_apart() -> None:
    assert not energy_of(dimer(6, 1, 1.0701)).any()
    assert not energy_of(dimer(8, 8, 2.0)).any()
    assert float(energy_of(dimer(6, 1, 1.02)).sum()) < 0.03  # eV, at a hot bond's shortest


def test_the_network_has_it_on_top_of_its_own_energy() -> None:
    frame = dimer(6, 8, 0.9)
    with_it, without = Race(WITH), Race(WITHOUT)
    params = with_it.init(0, dtype=torch.float64)
    batch = graph_of(with_it, frame)
    difference = with_it.energy(params, batch).energy - without.energy(params, batch).energy
    assert float(difference) == pytest.approx(float(energy_of(frame).sum()), rel=1e-9)
    folded = evaluate(with_it, with_it.fold(params), batch)
    torch.testing.assert_close(folded.forces, evaluate(with_it, params, batch).forces)


@pytest.mark.parametrize("cell", [None, CELL])
def test_symmetries_and_derivatives(cell: np.ndarray | None) -> None:
    model = Race(replace(WITH, repulsion_radii=(1.0, 1.2, 1.1)))  # wide enough to act
    params = model.init(1, dtype=torch.float64)
    frame = random_frame(ELEMENTS, 4 if cell is None else 2, seed=3, cell=cell)
    check_symmetries(model, params, frame)
    check_derivatives(model, params, frame)


def test_a_radius_for_each_element_or_none() -> None:
    with pytest.raises(ValueError, match="give one for each of"):
        small_spec(ELEMENTS, repulsion_radii=(0.3,))
