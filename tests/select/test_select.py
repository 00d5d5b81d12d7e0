"""Choosing from pools: near-duplicates, what was seen, mixed compositions, streams."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import DataError
from bayrace.data.split import frame_hashes
from bayrace.models.noise import NO_NOISE
from bayrace.select.acquire import ACQUISITIONS, AcquisitionError
from bayrace.select.acquire.descriptors import nearest, sorted_distances
from bayrace.select.scan import Scanning
from bayrace.select.select import MIN_DISTANCE, select
from bayrace.testing import random_frame


@pytest.fixture(scope="module")
def potential(make_potential):
    """An ensemble of three with random weights."""
    return make_potential(seeds=(0, 1, 2))


@pytest.fixture(scope="module")
def pool():
    """30 frames of ethanol at 1000 K."""
    return embedded_frames("ethanol-hot")[:30]


@pytest.fixture(scope="module")
def training():
    """20 frames of ethanol at 300 K."""
    return embedded_frames("ethanol-train")[:20]


def turned(frame, *, noise=0.0, seed=0):
    """The same structure elsewhere, its atoms of each element in another order."""
    random = np.random.default_rng(seed)
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    order = random.permutation(len(frame.numbers))
    positions = frame.positions @ turn.T + random.normal(size=3)
    positions = positions + noise * random.normal(size=positions.shape)
    return replace(
        frame,
        positions=positions[order],
        numbers=frame.numbers[order],
        energy=None,
        forces=None,
    )


@pytest.mark.parametrize("by", list(ACQUISITIONS))
def test_every_acquisition_chooses_what_was_asked_for(potential, pool, training, by):
    chosen = select(potential, pool, by=by, budget=7, seen=training)
    assert len(chosen.indices) == len(set(chosen.indices)) == 7
    assert chosen.pool == 30
    assert chosen.descriptor == "distances"
    assert np.isfinite(chosen.scores).all()
    assert len(chosen.why) == len(chosen.criteria) == 7
    again = select(potential, iter(pool), by=by, budget=7, seen=training)
    assert chosen.indices.tolist() == again.indices.tolist()
    fewer = select(potential, pool, by=by, budget=3, seen=training)
    assert fewer.indices.tolist() == chosen.indices[:3].tolist()  # budgets are nested


@pytest.mark.parametrize("by", [by for by in ACQUISITIONS if by != "random"])
def test_choices_do_not_depend_on_the_frame_of_reference(potential, pool, training, by):
    moved = [turned(frame, seed=index) for index, frame in enumerate(pool)]
    chosen, again = (
        select(potential, each, by=by, budget=5, seen=training) for each in (pool, moved)
    )
    assert chosen.indices.tolist() == again.indices.tolist()
    np.testing.assert_allclose(chosen.scores, again.scores, rtol=1e-6)


def test_the_largest_scores_are_chosen_and_ranked(potential, pool):
    chosen = select(potential, pool, by="bald-force", budget=4)
    column = chosen.columns["bald-force"]
    assert chosen.indices.tolist() == np.argsort(-column)[:4].tolist()
    assert chosen.ranks.tolist() == [1, 2, 3, 4]
    assert chosen.why[1].startswith(f"bald-force {chosen.scores[1]:.4g}, number 2 of 30")


def test_half_and_half(potential, pool):
    chosen = select(potential, pool, by="bald-ef", budget=6)
    assert chosen.criteria.count("bald-energy") == chosen.criteria.count("bald-force") == 3
    assert len(set(chosen.indices.tolist())) == 6


@pytest.mark.parametrize("by", ["random", "bald-energy", "bald-force", "diverse", "farthest"])
def test_near_duplicates_are_not_chosen_twice(potential, pool, by):
    doubled = [*pool[:6], *(turned(f, noise=1e-3, seed=k) for k, f in enumerate(pool[:6]))]
    chosen = select(potential, doubled, by=by, budget=12)
    assert sorted(chosen.indices % 6) == list(range(6))
    assert chosen.skipped == {"like a chosen one": 6}
    anyway = select(potential, doubled, by=by, budget=12, min_distance=0.0)
    assert len(anyway.indices) == 12


def test_choices_are_apart(potential, pool, training):
    chosen = select(potential, pool, by="bald-ef", budget=6, seen=training, min_distance=0.1)
    known = np.stack([sorted_distances(frame) for frame in training])
    for place, distance in zip(chosen.indices, chosen.distances, strict=True):
        point = sorted_distances(pool[place])[None]
        assert float(nearest(point, known)[0]) == pytest.approx(distance, abs=1e-6)
        assert distance > 0.1
        known = np.concatenate([known, point])


def test_what_was_seen_is_not_chosen(potential, pool, training):
    """By hash where labels are the same, by geometry where there are none."""
    learnt = replace(
        potential, frames={"train": frame_hashes(pool[:2]), "test": frame_hashes(pool[2:4])}
    )
    bare = [turned(frame, seed=3) for frame in training[:3]]
    chosen = select(learnt, [*pool[:10], *bare], by="bald-force", budget=99, seen=training)
    assert sorted(chosen.indices) == list(range(2, 10))  # a test set may be chosen from
    assert chosen.skipped == {"learnt from": 2, "like a training structure": 3}


def test_identical_frames_count_once_without_any_descriptor(potential, pool):
    twice = [pool[0], pool[1], pool[0]]
    chosen = select(potential, twice, by="random", budget=3, min_distance=0.0)
    assert sorted(chosen.indices) == [0, 1]
    assert chosen.skipped == {"repeated": 1}


def test_mixed_compositions_are_compared_by_features(potential):
    mixed = [random_frame((1, 6, 8), 5 + seed % 4, seed=seed) for seed in range(12)]
    crystal = random_frame((1, 6), 8, seed=3, cell=np.eye(3) * 5)
    for by in ("farthest", "diverse", "bald-ef"):
        chosen = select(potential, [*mixed, crystal, turned(mixed[0])], by=by, budget=99)
        assert chosen.descriptor == "features"
        assert len(chosen.indices) == 13
        assert chosen.skipped == {"like a chosen one": 1}
    alike = [turned(mixed[0], noise=0.05, seed=k) for k in range(4)]
    late = select(potential, [*alike, mixed[1]], by="farthest", budget=2)  # starts by distances
    assert late.descriptor == "features"
    assert 4 in late.indices
    with pytest.raises(AcquisitionError, match="give a list"):
        select(potential, iter([*alike, mixed[1]]), by="farthest", budget=2)


def test_a_pool_is_never_held_as_a_whole(potential, pool):
    """No more frames are alive at a time than fit into a few batches."""
    import weakref

    alive, most = weakref.WeakSet(), 0

    def stream():
        nonlocal most
        for turn in range(10):
            for frame in pool:
                moved = turned(frame, noise=0.02, seed=turn)
                alive.add(moved)
                most = max(most, len(alive))
                yield moved
                del moved

    heard = []
    chosen = select(
        potential,
        stream(),
        by="bald-ef",
        budget=5,
        scanning=Scanning(edges=600, progress=heard.append),
    )
    assert chosen.pool == heard[-1] == 300
    assert most < 40


def test_errors_name_the_remedy(potential, make_potential, pool):
    with pytest.raises(DataError, match="no structures"):
        select(potential, [], by="random", budget=1)
    with pytest.raises(AcquisitionError, match="at least 1"):
        select(potential, pool, by="random", budget=0)
    point = make_potential(seeds=(0,), noise=NO_NOISE)
    with pytest.raises(AcquisitionError, match="no uncertainty to choose by"):
        select(point, pool, by="variance", budget=1)
    with pytest.raises(AcquisitionError, match="choose by variance"):
        select(point, pool, by="bald-ef", budget=1)


def test_thresholds_are_below_the_spread_of_dynamics(pool):
    """Independent frames of one trajectory are not taken for the same."""
    points = np.stack([sorted_distances(frame) for frame in pool])
    for place in range(len(points)):
        others = np.delete(points, place, axis=0)
        assert nearest(points[place][None], others)[0] > MIN_DISTANCE["distances"]
