"""Predictions on a cluster are those of this process, in the same order, whatever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("distributed")

from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import Frame
from bayrace.evaluate.evaluation import evaluate
from bayrace.potential import cluster as potential_cluster
from bayrace.potential.cluster import OnCluster
from bayrace.potential.potential import Potential
from bayrace.predict.moments import concatenate
from bayrace.select.acquire import ACQUISITIONS
from bayrace.select.scan import Scanning
from bayrace.select.select import select
from bayrace.system.cluster import cluster
from bayrace.testing import random_frame


@pytest.fixture(scope="module")
def potential(make_potential) -> Potential:
    """An ensemble of three with random weights."""
    return make_potential(seeds=(0, 1, 2))


@pytest.fixture(scope="module")
def frames() -> list[Frame]:
    """40 molecules, of two kinds, with labels."""
    return [*embedded_frames("ethanol-hot")[:30], *embedded_frames("ethanol-train")[:10]]


@pytest.fixture(scope="module")
def client() -> Iterator[object]:
    """Two processes beside this one."""
    with cluster(workers=2, scheduler=None, processes=True) as client:
        yield client


@pytest.fixture
def spread(potential, client, monkeypatch) -> OnCluster:
    """The potential on it; tasks of five molecules."""
    monkeypatch.setattr(potential_cluster, "_ATOMS", 45)
    return OnCluster(potential, client, "cpu")


def test_predictions_are_those_of_this_process(potential, spread, frames):
    heard: list[int] = []
    batches = list(spread.predict_frames(frames, stress=True, progress=heard.append))
    assert [frame for group, _ in batches for frame in group] == frames
    assert heard == list(range(5, 41, 5))
    here, there = potential.predict(frames, stress=True), concatenate([p for _, p in batches])
    for name in ("energy", "forces"):
        for part in ("mean", "aleatoric", "epistemic", "log_aleatoric"):
            expected, found = (
                getattr(getattr(here, name), part),
                getattr(getattr(there, name), part),
            )
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(there.structure_index, here.structure_index)


def test_frames_are_read_only_as_far_as_workers_need_them(spread, frames):
    read = 0

    def endless() -> Iterator[Frame]:
        nonlocal read
        while True:
            read += 1
            yield frames[read % len(frames)]

    first = next(spread.predict_frames(endless()))
    assert len(first[0]) == 5
    assert read <= 5 * (3 * 2 + 1) + 1  # three tasks for each of two workers


def test_evaluations_are_the_same(potential, spread, frames):
    here, there = (evaluate(each, frames, name="set") for each in (potential, spread))
    np.testing.assert_allclose(there.forces.error, here.forces.error, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(there.energy.std, here.energy.std, rtol=1e-9)
    ours, theirs = (each.to_json()["energy"]["mae"] for each in (here, there))
    assert theirs == pytest.approx(ours, rel=1e-9)


@pytest.mark.parametrize("by", list(ACQUISITIONS))
def test_choices_are_the_same(potential, spread, frames, by):
    pool, seen = frames[:30], frames[30:]
    here = select(potential, pool, by=by, budget=6, seen=seen)
    there = select(potential, pool, by=by, budget=6, seen=seen, scanning=Scanning(cluster=spread))
    assert there.indices.tolist() == here.indices.tolist()
    np.testing.assert_allclose(there.scores, here.scores, rtol=1e-9)


def test_pools_of_several_compositions(potential, spread, frames):
    mixed = [*frames[:10], random_frame(potential.elements, seed=3, atoms=7)]
    here = select(potential, mixed, by="diverse", budget=4)
    there = select(potential, mixed, by="diverse", budget=4, scanning=Scanning(cluster=spread))
    assert there.indices.tolist() == here.indices.tolist()
    assert there.descriptor == "features"


def test_what_is_wrong_with_a_structure_is_said(spread, frames):
    strange = replace(frames[7], numbers=np.full(9, 26), source="iron.xyz")
    with pytest.raises(ValueError, match=r"iron\.xyz"):
        list(spread.predict_frames([*frames[:7], strange, *frames[8:]]))


def test_a_worker_that_dies_is_replaced(potential, frames, monkeypatch):
    monkeypatch.setattr(potential_cluster, "_ATOMS", 45)
    with cluster(workers=2, scheduler=None, processes=True) as client:
        batches = OnCluster(potential, client, "cpu").predict_frames(frames)
        found = [next(batches)]
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        found += batches
    here, there = potential.predict(frames), concatenate([p for _, p in found])
    torch.testing.assert_close(there.energy.mean, here.energy.mean, rtol=1e-9, atol=1e-12)


def test_a_real_cluster(potential, frames, scheduler):
    with cluster(workers=1, scheduler=scheduler) as client:
        spread = OnCluster(potential, client, "cpu")
        there = concatenate([p for _, p in spread.predict_frames(frames)])
    torch.testing.assert_close(there.energy.mean, potential.predict(frames).energy.mean)
