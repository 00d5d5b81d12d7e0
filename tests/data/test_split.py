"""Splits that depend on the seed only, and fingerprints that see every label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import DataError
from bayrace.data.split import (
    fingerprint,
    frame_fingerprint,
    frame_hashes,
    geometry_fingerprint,
    split,
)
from bayrace.train.checkpoint import digest


@pytest.fixture
def frames(make_frame):
    return [make_frame(energy=-float(index), index=index) for index in range(20)]


def indices(frames):
    return [frame.index for frame in frames]


def test_split_is_a_seeded_partition(frames):
    train, valid = split(frames, valid=5, seed=3)
    assert sorted(indices(train) + indices(valid)) == list(range(20))
    assert len(valid) == 5
    assert indices(train) == sorted(indices(train))
    assert indices(split(frames, valid=5, seed=3)[1]) == indices(valid)
    assert indices(split(frames, valid=5, seed=4)[1]) != indices(valid)


@pytest.mark.parametrize(("count", "stretches"), [(4, 1), (25, 2), (50, 5), (90, 5)])
def test_stretches_of_frames_that_follow_each_other(make_frame, count, stretches):
    frames = [make_frame(energy=-float(index), index=index) for index in range(200)]
    train, valid = split(frames, valid=count, seed=1, drawn="stretches")
    assert sorted(indices(train) + indices(valid)) == list(range(200))
    assert len(valid) == count
    ends = np.flatnonzero(np.diff(indices(valid)) > 1)
    assert len(ends) + 1 <= stretches  # two may meet
    assert indices(valid) == indices(split(frames, valid=count, seed=1, drawn="stretches")[1])
    assert indices(valid) != indices(split(frames, valid=count, seed=2, drawn="stretches")[1])


def test_stretches_are_drawn_where_single_frames_would_be_copies(caplog):
    ethanol = embedded_frames("ethanol-train")[:40]
    places = np.linspace(0, 1, 200)[:, None, None] * (ethanol[1].positions - ethanol[0].positions)
    path = [
        replace(ethanol[0], positions=ethanol[0].positions + each, index=place)
        for place, each in enumerate(places)
    ]
    with caplog.at_level("WARNING", "bayrace"):
        parts = split(path, valid=50, seed=0, drawn="auto")
    assert [indices(each) for each in parts] == [
        indices(each) for each in split(path, valid=50, seed=0, drawn="stretches")
    ]
    assert "5 stretches" in caplog.text
    rare = split(ethanol, valid=10, seed=0, drawn="auto")
    assert [indices(each) for each in rare] == [
        indices(each) for each in split(ethanol, valid=10, seed=0)
    ]


@pytest.mark.parametrize(("valid", "count"), [(0, 0), (0.1, 2), (0.001, 1), (19, 19), (4.0, 4)])
def test_sizes(frames, valid, count):
    assert len(split(frames, valid=valid, seed=0)[1]) == count


@pytest.mark.parametrize("valid", [20, -1, 2.5, -0.1])
def test_impossible_sizes_are_refused(frames, valid):
    with pytest.raises(DataError, match=f"valid={valid} of 20 frames"):
        split(frames, valid=valid, seed=0)


def test_fingerprint_ignores_order_only(frames, make_frame):
    assert fingerprint(frames) == fingerprint(frames[::-1])
    assert fingerprint(frames) != fingerprint(frames[1:])
    assert len(fingerprint(frames)) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"energy": -14.0000001},
        {"energy": None},
        {"forces": np.full((3, 3), 0.5000001)},
        {"forces": None},
        {"stress": np.zeros(6)},
        {"numbers": np.array([8, 1, 2])},
        {"cell": np.eye(3)},
        {"pbc": np.array([True, False, False])},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_counts(make_frame, change):
    assert frame_fingerprint(make_frame(**change)) != frame_fingerprint(make_frame())


def test_geometry_fingerprint_ignores_labels_and_last_digits(make_frame):
    frame = make_frame()
    near = make_frame(positions=frame.positions + 1e-9, energy=3.0, forces=None)
    assert geometry_fingerprint(near) == geometry_fingerprint(frame)
    assert frame_fingerprint(near) != frame_fingerprint(frame)
    moved = make_frame(positions=frame.positions + 1e-3)
    assert geometry_fingerprint(moved) != geometry_fingerprint(frame)


def test_negative_zero_is_zero(make_frame):
    first, second = (make_frame(forces=np.full((3, 3), zero)) for zero in (0.0, -0.0))
    assert frame_fingerprint(first) == frame_fingerprint(second)


def test_the_hashes_of_no_frames_can_be_stored():
    """A run without test data has none."""
    assert digest({"frames/test": torch.from_numpy(frame_hashes([]))})
