"""Neighbour lists against brute force over all images."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from bayrace.data.neighbours import neighbour_list, reverse_edges

PERIODICITY = [np.array(pbc) for pbc in product([False, True], repeat=3)]


def brute_force(positions, cell, pbc, cutoff):
    """All (i, j, shift) with r < cutoff, by trying every image that could matter."""
    lattice = np.where(pbc[:, None], cell, 0.0)
    inverse = np.linalg.pinv(lattice)
    fractions = positions @ inverse
    spread = np.ptp(fractions, axis=0) + cutoff * np.linalg.norm(inverse, axis=0)
    reach = np.where(pbc, np.ceil(spread).astype(int) + 1, 0)
    found = set()
    for shift in product(*(range(-n, n + 1) for n in reach)):
        vectors = positions[None] - positions[:, None] + np.array(shift) @ lattice
        near = (vectors**2).sum(-1) < cutoff**2
        if shift == (0, 0, 0):
            np.fill_diagonal(near, False)
        found |= {(int(i), int(j), shift) for i, j in zip(*np.nonzero(near), strict=True)}
    return found


def listed(edges, shifts):
    return [
        (i, j, tuple(shift))
        for i, j, shift in zip(edges[0].tolist(), edges[1].tolist(), shifts.tolist(), strict=True)
    ]


def assert_exact(positions, cell, pbc, cutoff):
    edges, shifts = neighbour_list(positions, cell, pbc, cutoff)
    found = listed(edges, shifts)
    assert len(found) == len(set(found))
    assert set(found) == brute_force(positions, cell, pbc, cutoff)
    assert found == sorted(found)
    reverse = reverse_edges(edges, shifts)
    np.testing.assert_array_equal(edges[:, reverse], edges[::-1])
    np.testing.assert_array_equal(shifts[reverse], -shifts)
    return edges


@pytest.mark.parametrize("pbc", PERIODICITY, ids=lambda pbc: "".join("FT"[int(x)] for x in pbc))
@pytest.mark.parametrize("reach", [1.0, 12.0], ids=["inside", "outside the cell"])
def test_skewed_cells_of_every_periodicity(pbc, reach):
    random = np.random.default_rng(3)
    cell = np.diag([5.0, 4.0, 6.0]) + random.normal(scale=0.8, size=(3, 3))
    positions = random.uniform(-reach, reach, (9, 3)) + np.array([-20.0, 3.0, 0.0])
    edges = assert_exact(positions, cell, pbc, 4.5)
    assert edges.shape[1] > 0 or not pbc.any()


def test_cell_smaller_than_the_cutoff_sees_its_own_images():
    cell = np.array([[2.0, 0.3, 0.0], [0.0, 2.2, 0.5], [0.7, 0.0, 1.9]])
    edges = assert_exact(np.array([[0.1, 0.2, 0.3]]), cell, np.ones(3, bool), 5.0)
    assert edges.shape[1] > 50
    assert (edges == 0).all()


def test_many_atoms():
    random = np.random.default_rng(5)
    assert_exact(random.uniform(-3, 12, (150, 3)), np.diag([9.0, 9.5, 11.0]), np.ones(3, bool), 2.5)


def test_neighbours_at_the_cutoff_are_left_out_on_both_sides():
    cell = np.eye(3) * 4.0
    grid = np.array(list(product(range(4), repeat=3)), dtype=float) - 7.0
    edges = assert_exact(grid, cell, np.ones(3, bool), 1.0)
    assert edges.shape[1] == 0
    assert assert_exact(grid, cell, np.ones(3, bool), 1.0 + 1e-9).shape[1] == 6 * 64


@pytest.mark.parametrize("seed", range(20))
def test_rounding_at_the_cutoff_keeps_the_list_symmetric(seed):
    random = np.random.default_rng(seed)
    cell = np.diag(random.uniform(3, 4, 3))
    positions = random.uniform(0, 40, (6, 3))
    vectors = (
        positions[1]
        - positions[0]
        - np.round((positions[1] - positions[0]) @ np.linalg.inv(cell)) @ cell
    )
    cutoff = float(np.linalg.norm(vectors))  # a distance that occurs, up to rounding
    edges, shifts = neighbour_list(positions, cell, np.ones(3, bool), cutoff)
    reverse = reverse_edges(edges, shifts)
    np.testing.assert_array_equal(edges[:, reverse], edges[::-1])
    np.testing.assert_array_equal(shifts[reverse], -shifts)


def test_isolated_atom_has_no_neighbours():
    edges, shifts = neighbour_list(np.zeros((1, 3)), np.zeros((3, 3)), np.zeros(3, bool), 5.0)
    assert edges.shape == (2, 0)
    assert shifts.shape == (0, 3)
    assert reverse_edges(edges, shifts).shape == (0,)


def test_cell_vectors_of_open_directions_do_not_matter():
    random = np.random.default_rng(1)
    positions = random.uniform(0, 3, (5, 3))
    pbc = np.array([True, False, True])
    cell = np.array([[3.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 4.0]])
    other = cell.copy()
    other[1] = [0.1, 0.2, 0.3]
    first, second = (neighbour_list(positions, c, pbc, 4.0) for c in (cell, other))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
