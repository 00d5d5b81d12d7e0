"""Frames are recognised by geometry and labels, whatever file they came from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bayrace.calibrate.seen import overlap, refuse_seen
from bayrace.data.frame import DataError, Frame, bare_frame
from bayrace.data.split import frame_hashes


def make_frames(count: int) -> list[Frame]:
    generator = np.random.default_rng(0)
    return [
        replace(
            bare_frame(
                np.array([1, 8]), generator.normal(size=(2, 3)), np.zeros((3, 3)),
                np.zeros(3, dtype=bool), source="a.xyz", index=index,
            ),
            energy=-1.0,
        )
        for index in range(count)
    ]  # fmt: skip


def test_overlap_counts_frames_of_each_part() -> None:
    frames = make_frames(6)
    seen = {"train": frame_hashes(frames[:3]), "valid": frame_hashes(frames[3:4])}
    moved = [replace(frame, source="b.xyz", index=0, config_type="hot") for frame in frames]
    assert overlap(seen, moved[1:]) == {"train": 2, "valid": 1}
    assert overlap(seen, moved[4:]) == {}
    assert overlap({}, moved) == {}
    relabelled = [replace(frame, energy=-2.0) for frame in frames]
    assert overlap(seen, relabelled) == {}


@pytest.mark.parametrize(("part", "purpose"), [("train", "training"), ("test", "testing")])
def test_calibration_refuses(part: str, purpose: str) -> None:
    frames = make_frames(5)
    with pytest.raises(DataError, match=f"2 of 5 frames were used for {purpose}"):
        refuse_seen({part: frame_hashes(frames[:2])}, frames)
    refuse_seen({"valid": frame_hashes(frames), "calibration": frame_hashes(frames)}, frames)
