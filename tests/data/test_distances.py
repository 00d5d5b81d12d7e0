"""Gaps between the distances of training data, against counting them one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.neighborlist import neighbor_list

from bayrace.data.dataset import Dataset
from bayrace.data.distances import ENOUGH, RESOLUTION, Distances, Gap
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import Frame, frame_from_atoms, frame_to_atoms

REFERENCES = dict.fromkeys((1, 6, 8, 13, 29), 0.0)


def dataset(frames: list[Frame], cutoff: float = 5.0) -> Dataset:
    elements = tuple(sorted({int(z) for frame in frames for z in frame.numbers}))
    return Dataset(frames, elements=elements, cutoff=cutoff, references=REFERENCES)


def pair(distance: float, symbols: str = "CO") -> Frame:
    return frame_from_atoms(Atoms(symbols, [[0, 0, 0], [0, distance, 0]]), keys=None)


def alloys(count: int, seed: int) -> list[Frame]:
    frames = []
    for number in range(count):
        atoms = bulk("Al", cubic=True)
        atoms.symbols[0] = "Cu"
        atoms.rattle(0.1, seed=seed + number)
        frames.append(frame_from_atoms(atoms, keys=None))
    return frames


def by_hand(
    frame: Frame, training: list[Frame], cutoff: float = 5.0, *, enough: int = ENOUGH
) -> float:
    """The widest gap, from ASE's neighbours and a sort."""

    def distances(frame: Frame) -> dict[tuple[int, int], np.ndarray]:
        first, second, length = neighbor_list("ijd", frame_to_atoms(frame), cutoff)
        pairs = np.sort(frame.numbers[np.stack([first, second])], axis=0).T
        return {tuple(p): length[(pairs == p).all(1)] for p in np.unique(pairs, axis=0).tolist()}

    known: dict[tuple[int, int], list[np.ndarray]] = {}
    for other in training:
        for kind, lengths in distances(other).items():
            steps = np.unique(np.floor(lengths / RESOLUTION))
            known.setdefault(kind, []).append(steps * RESOLUTION)
    widest = 0.0
    for kind, lengths in distances(frame).items():
        values = np.concatenate(known[kind])
        for length in np.floor(lengths / RESOLUTION) * RESOLUTION:
            steep = 2 if length < values.min() - RESOLUTION / 2 else 1
            widest = max(widest, steep * np.sort(np.abs(values - length))[enough - 1])
    return widest


def gap(known: Distances, frame: Frame) -> Gap:
    found = known.gap(frame)
    assert found is not None
    return found


def test_a_gap_by_hand() -> None:
    known = Distances.of(dataset([pair(d) for d in (1.2, 1.3, 1.4, 2.2, 2.3)]))
    found = gap(known, pair(1.9))
    assert found.size == pytest.approx(0.5, abs=2 * RESOLUTION)  # 2.2, 2.3 and 1.4
    assert found.distance == pytest.approx(1.9)
    assert found.atoms == (0, 1)
    assert gap(known, pair(1.1)).size == pytest.approx(2 * 0.3, abs=4 * RESOLUTION)  # shorter
    assert gap(known, pair(1.3)).size == pytest.approx(0.1, abs=2 * RESOLUTION)
    assert gap(known, pair(4.9)).size == pytest.approx(3.5, abs=2 * RESOLUTION)


def test_pairs_that_were_never_met() -> None:
    known = Distances.of(dataset([pair(1.2)] * 5 + [pair(1.0, "HH")] * 2))
    assert gap(known, pair(1.2)).size == 0
    assert gap(known, pair(1.2, "CC")).size == np.inf
    assert gap(known, pair(1.0, "HH")).size == np.inf  # two are not enough
    assert gap(known, pair(np.nextafter(5.0, 0.0))).size == pytest.approx(3.8, abs=2 * RESOLUTION)
    assert known.gap(pair(5.1)) is None
    assert known.gap(pair(5.1, "CC")) is None


@pytest.mark.parametrize("seed", range(4))
def test_molecules_and_crystals_as_by_hand(seed: int) -> None:
    ethanol = embedded_frames("ethanol-train")[seed : seed + 40]
    hot = embedded_frames("ethanol-hot")[seed]
    for training, frame, cutoff in (
        (ethanol, hot, 4.0),
        (alloys(6, seed), alloys(1, 99 + seed)[0], 5.5),
    ):
        found = gap(Distances.of(dataset(training, cutoff)), frame)
        assert found.size > RESOLUTION
        assert found.size == pytest.approx(by_hand(frame, training, cutoff), abs=1e-9)


def test_a_frame_counts_once() -> None:
    """All nearest neighbours of a perfect crystal are equally far; two frames are not enough."""
    perfect = frame_from_atoms(bulk("Cu", a=3.615, cubic=True), keys=None)
    next_shell = 3.615 * (1 - np.sqrt(0.5))
    two = gap(Distances.of(dataset([perfect] * 2)), perfect)
    assert two.size == pytest.approx(next_shell, abs=2 * RESOLUTION)
    assert gap(Distances.of(dataset([perfect] * 3)), perfect).size == 0


def test_symmetries() -> None:
    known = Distances.of(dataset(embedded_frames("ethanol-train")[:50]))
    frame = embedded_frames("ethanol-hot")[0]
    expected = gap(known, frame)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    moved = frame.positions @ turn + [3.0, -1.0, 2.0]
    order = np.random.default_rng(1).permutation(len(frame.numbers))
    other = replace(frame, positions=moved[order], numbers=frame.numbers[order])
    found = gap(known, other)
    assert found.size == pytest.approx(expected.size, abs=RESOLUTION)
    assert {int(order[place]) for place in found.atoms} == set(expected.atoms)


def test_no_distance_counts_for_itself_in_the_usual_gap() -> None:
    frames = embedded_frames("ethanol-train")[:30]
    data = dataset(frames)
    one_by_one = [by_hand(frame, frames, enough=ENOUGH + 1) for frame in frames]
    assert Distances.of(data).usual(data) == pytest.approx(max(one_by_one))  # 99 % of 30 is all
    few = dataset([pair(1.2)] * 3)
    assert Distances.of(few).usual(few) is None


def test_arrays_and_back() -> None:
    known = Distances.of(dataset(embedded_frames("ethanol-train")[:20]))
    arrays = known.arrays()
    assert sorted(arrays) == ["1-1", "1-6", "1-8", "6-6", "6-8"]
    again = Distances.restore(known.cutoff, arrays)
    for frame in embedded_frames("ethanol-hot")[:5]:
        assert again.gap(frame) == known.gap(frame)
