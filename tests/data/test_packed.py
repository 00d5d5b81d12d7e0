"""Structures and graphs come back from a file as they went into it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch

from bayrace.data.batch import build_graph
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import Frame
from bayrace.data.packed import Packed, load, save


def test_everything_comes_back(tmp_path: Path) -> None:
    """Molecules and crystals, labelled and not, of several files and kinds."""
    ammonia = embedded_frames("ammonia-train")[:2]
    frames = [*embedded_frames("ethanol-train")[:3], *ammonia]
    frames += [replace(frames[0], energy=None, forces=None), replace(frames[1], energy=0.0)]
    frames += [replace(ammonia[0], stress=None, weight=0.3, config_type="größer", index=17)]
    frames[2] = replace(frames[2], forces=np.asfortranarray(frames[2].forces))
    graphs = [build_graph(frame, elements=(1, 6, 7, 8), cutoff=4.0) for frame in frames]
    alone = replace(frames[0], numbers=np.array([1]), positions=np.zeros((1, 3)), forces=None)
    graphs.append(build_graph(alone, elements=(1, 6, 7, 8), cutoff=4.0))  # has no edge
    save(
        tmp_path / "file",
        Packed({"a": [*frames, alone], "b": frames[::-1], "none": []}, {"a": graphs}, {"x": [1]}),
    )
    held = load(tmp_path / "file")
    assert held.content == {"x": [1]}
    assert list(held.frames) == ["a", "b", "none"]
    for name, expected in (("a", [*frames, alone]), ("b", frames[::-1]), ("none", [])):
        for one, other in zip(expected, held.frames[name], strict=True):
            _same_frame(one, other)
    for first, second in zip(graphs, held.graphs["a"], strict=True):
        for field in fields(first):
            one, other = getattr(first, field.name), getattr(second, field.name)
            assert one.dtype == other.dtype
            assert torch.equal(one.nan_to_num(-1), other.nan_to_num(-1)), field.name


def test_changes_stay_with_whoever_makes_them(tmp_path: Path) -> None:
    frames = embedded_frames("ethanol-train")[:2]
    save(tmp_path / "file", Packed({"a": frames}, {}, {}))
    first, second = load(tmp_path / "file"), load(tmp_path / "file")
    first.frames["a"][0].positions[:] = 7.0
    _same_frame(frames[0], second.frames["a"][0])
    _same_frame(frames[0], load(tmp_path / "file").frames["a"][0])


def _same_frame(one: Frame, other: Frame) -> None:
    for field in fields(one):
        before, after = getattr(one, field.name), getattr(other, field.name)
        assert type(before) is type(after), field.name
        if isinstance(before, np.ndarray):
            assert before.dtype == after.dtype, field.name
            assert np.array_equal(before, after), field.name
        else:
            assert before == after, field.name
