"""Which frames an epoch has, where some of them were learnt before."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from bayrace.train.settings import Rehearsal
from bayrace.train.task import Task


def make_task(runner: ModuleType, **changes: object) -> Task:
    return Task(
        model=runner.model(),
        likelihood_at=lambda epoch: runner.squares(),
        train=runner.dataset(10, seed=0),
        valid=runner.dataset(2, seed=1),
        settings=runner.settings(**changes),
        folder=Path(),
    )


def test_an_epoch_has_all_new_frames_and_some_old_ones(runner: ModuleType) -> None:
    task = make_task(runner, rehearsal=Rehearsal(known=7, take=3), batch_size=4)
    assert task.steps_per_epoch == 2
    epochs = [task.order(epoch) for epoch in range(40)]
    places = [sorted(place for batch in epoch for place in batch) for epoch in epochs]
    assert all(len(epoch) == 2 for epoch in epochs)
    assert all(each[-3:] == [7, 8, 9] and len(set(each)) == 6 for each in places)
    assert {place for each in places for place in each} == set(range(10))  # others each time
    assert epochs[5] == task.order(5)


def test_by_edges_too(runner: ModuleType) -> None:
    edges = int(runner.dataset(10, seed=0).edges.sum())
    budget = edges // 5 + 1
    assert make_task(runner, edge_budget=budget).steps_per_epoch == 5
    task = make_task(runner, edge_budget=budget, rehearsal=Rehearsal(known=8, take=2))
    assert task.steps_per_epoch == 2
    drawn = {place for batch in task.order(0) for place in batch}
    assert len(drawn) == 4
    assert {8, 9} <= drawn


def test_everything_is_the_default(runner: ModuleType) -> None:
    plain = make_task(runner)
    whole = make_task(runner, rehearsal=Rehearsal(known=4, take=4))
    assert plain.order(3) == whole.order(3)
    assert sorted(place for batch in plain.order(3) for place in batch) == list(range(10))


def test_what_is_refused(runner: ModuleType) -> None:
    with pytest.raises(ValueError, match="take=5: give 0 to known=4 frames"):
        Rehearsal(known=4, take=5)
    with pytest.raises(ValueError, match="the training set has 10 frames"):
        make_task(runner, rehearsal=Rehearsal(known=11, take=2))
    with pytest.raises(ValueError, match="an epoch has no frames; rehearse at least one"):
        make_task(runner, rehearsal=Rehearsal(known=10, take=0))
