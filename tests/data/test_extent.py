"""Structures that crash a neighbour search, or never end it, are refused before it begins."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from bayrace.data.check import check_frame
from bayrace.data.extent import plan_search
from bayrace.data.frame import DataError, bare_frame
from bayrace.data.neighbours import neighbour_list

NONE, ALL = np.zeros(3, dtype=bool), np.ones(3, dtype=bool)


def pair(distance: float) -> np.ndarray:
    return np.array([[0.0, 0.0, 0.0], [distance, 0.0, 0.0]])


@pytest.mark.parametrize(("distance", "cutoff"), [(1e6, 5.0), (3e6, 1.5), (1e12, 5.0)])
def test_atoms_far_apart_are_refused(distance: float, cutoff: float) -> None:
    with pytest.raises(DataError, match=r"Å.*check positions"):
        neighbour_list(pair(distance), np.zeros((3, 3)), NONE, cutoff)


@pytest.mark.parametrize("length", [0.01, 0.001, 1e-5])
def test_tiny_cells_are_refused(length: float) -> None:
    frame = bare_frame(np.array([1]), np.zeros((1, 3)), np.eye(3) * length, ALL, source="a.xyz")
    with pytest.raises(DataError, match=r"a\.xyz, frame 0: .*within 0\.3 Å; check the cell"):
        check_frame(frame)


def test_dense_structures_are_refused() -> None:
    positions = np.zeros((20_000, 3))
    with pytest.raises(DataError, match="20000 atoms in a cube"):
        neighbour_list(positions, np.zeros((3, 3)), NONE, 5.0)
    with pytest.raises(DataError, match="20000 atoms in 125 Å³"):
        neighbour_list(positions, np.eye(3) * 5.0, ALL, 5.0)


def test_endless_skew_is_refused() -> None:
    cell = np.array([[5.0, 0.0, 0.0], [1e8, 5.0, 0.0], [0.0, 0.0, 5.0]])
    with pytest.raises(DataError, match="so skewed"):
        neighbour_list(np.ones((30, 3)) * np.arange(30)[:, None] / 7, cell, ALL, 5.0)


SEARCH = """
import numpy as np
from bayrace.data.neighbours import neighbour_list
positions = np.random.default_rng(0).uniform(0, 1, (300, 3)) * {size}
positions[1] = positions[0] + [0.9, 0, 0]
pbc = np.array({pbc})
edges, _ = neighbour_list(positions, np.diag({size}), pbc, 1.5)
assert (0, 1) in set(zip(*edges.tolist())), edges
print("found")
"""


@pytest.mark.parametrize(
    ("size", "pbc"),
    [
        ([1000.0, 1000.0, 1.0], [False] * 3),  # a sheet: less than one cell across
        ([1000.0, 1000.0, 1.0], [True] * 3),
        ([1.6e5, 2.0, 2.0], [True] * 3),
        ([1000.0, 1000.0, 1.0], [True, True, False]),
        ([2.0, 1.6e5, 2.0], [False, True, False]),
    ],
)
def test_sheets_and_needles_are_searched(size: list[float], pbc: list[bool]) -> None:
    """In a process of its own: the search itself ended it by SIGFPE."""
    code = SEARCH.format(size=size, pbc=pbc)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.strip()) == (0, "found"), ended.stderr


def test_usual_structures_are_searched_as_before() -> None:
    positions = np.random.default_rng(0).uniform(0, 12, (100, 3))
    for cell, pbc in ((np.zeros((3, 3)), NONE), (np.eye(3) * 12.0, ALL)):
        assert plan_search(positions, cell, pbc, 5.0).reach == 5.0
