"""How far from its training data dynamics of a potential may go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ase import Atoms

from bayrace.data.dataset import Dataset
from bayrace.data.distances import STEEP, Distances
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.models.race.stored_spec import ORGANIC
from bayrace.potential.leeway import PRETRAINED, RANDOM, strict_below
from bayrace.potential.potential import Potential


def pair(distance: float) -> Frame:
    return frame_from_atoms(Atoms("CO", [[0, 0, 0], [0, distance, 0]]), keys=None)


def with_distances(potential: Potential) -> Potential:
    frames = [pair(1.2 + 0.01 * k) for k in range(9)]
    references = dict.fromkeys((6, 8), 0.0)
    data = Dataset(frames, elements=(6, 8), cutoff=4.0, references=references)
    found = Distances.of(data)
    statistics = {**potential.statistics, "distance_gap": found.usual(data)}
    return replace(potential, statistics=statistics, distances=strict_below(found, potential.spec))


def test_pretrained_weights_may_stretch_bonds_further_than_compress_them(
    make_potential: Callable[..., Potential], tmp_path: Path
) -> None:
    made = make_potential()
    random = with_distances(made)
    known = with_distances(replace(made, spec=replace(made.spec, pretrained=ORGANIC)))
    usual = random.statistics["distance_gap"]
    assert random.gap_limit == pytest.approx(RANDOM * usual)
    assert known.gap_limit == pytest.approx(PRETRAINED * usual)
    for potential, below in ((random, RANDOM), (known, 3.0)):
        potential.save(tmp_path / "model.bayrace")
        again = Potential.load(tmp_path / "model.bayrace")
        assert again.gap_limit == potential.gap_limit
        assert again.distances is not None
        limit = potential.gap_limit
        long, short = (again.distances.gap(pair(length)) for length in (1.5, 1.0))
        assert long is not None
        assert short is not None
        assert long.size == pytest.approx(0.24, abs=0.003)  # to 1.26, the third longest
        assert short.size / limit == pytest.approx(STEEP * 0.22 / (below * usual), rel=0.02)
