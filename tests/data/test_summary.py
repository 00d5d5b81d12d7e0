"""The data report: counts, ranges, planted outliers and planted duplicates."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from bayrace.data.check import report


@pytest.fixture
def frames(make_frame):
    random = np.random.default_rng(0)
    return [
        make_frame(
            positions=make_frame().positions + random.normal(scale=0.05, size=(3, 3)),
            energy=-14.0 + random.normal(scale=0.1),
            forces=random.normal(size=(3, 3)),
            index=index,
        )
        for index in range(40)
    ]


def test_counts_and_ranges(frames, make_frame):
    silent = make_frame(energy=None, forces=None, config_type="other", index=40)
    train = report({"train": [*frames, silent]}).splits[0]
    assert train.frames == 41
    assert train.atoms == 123
    assert train.elements == {"H": 82, "O": 41}
    assert train.config_types == {"Default": 40, "other": 1}
    assert train.missing == {"energy": 1, "forces": 1, "stress": 41}
    assert train.periodic == {"FFF": 41}
    energies = np.array([frame.energy for frame in frames]) / 3
    assert train.energy_per_atom.low == pytest.approx(energies.min())
    assert train.energy_per_atom.high == pytest.approx(energies.max())
    forces = np.stack([frame.forces for frame in frames])
    assert train.force.high == pytest.approx(np.linalg.norm(forces, axis=-1).max())
    assert train.force_rms == pytest.approx(np.sqrt((forces**2).mean()))
    assert train.stress is None


def test_ordinary_data_has_no_outliers_or_duplicates(frames):
    found = report({"train": frames[:30], "valid": frames[30:]})
    assert found.outliers == ()
    assert found.duplicates == ()


def test_planted_outliers_are_found(frames, make_frame):
    wrong = dataclasses.replace(frames[5], energy=+14.0)
    hot = dataclasses.replace(frames[6], forces=with_large(frames[6].forces))
    found = report({"train": [*frames[:5], wrong, hot, *frames[7:]]}).outliers
    assert [(item.frame, item.quantity) for item in found] == [
        ("water.xyz, frame 5", "energy"),
        ("water.xyz, frame 6", "force"),
    ]
    assert found[0].value == pytest.approx(28 / 3, abs=0.2)
    assert found[1].value == pytest.approx(60.0)
    assert "atom 2 (H)" in found[1].remark


def with_large(forces):
    changed = forces.copy()
    changed[2] = [60.0, 0.0, 0.0]
    return changed


def test_duplicates_within_and_across_splits(frames):
    relabelled = dataclasses.replace(frames[3], energy=-1.0, source="other.xyz", index=0)
    found = report({"train": [*frames[:10], frames[0]], "test": [relabelled]}).duplicates
    assert [item.across for item in found] == [False, True]
    assert found[1].first == "water.xyz, frame 3"
    assert found[1].second == "other.xyz, frame 0"
    assert (found[1].first_split, found[1].second_split) == ("train", "test")


def test_report_is_json(frames):
    text = json.dumps(dataclasses.asdict(report({"train": frames, "empty": []})))
    assert json.loads(text)["splits"][1]["frames"] == 0


def test_unlabelled_split(make_frame):
    bare = make_frame(energy=None, forces=None)
    found = report({"structures": [bare]})
    assert found.splits[0].energy_per_atom is None
    assert found.splits[0].force is None


def test_atoms_alone_are_no_outliers(frames, make_frame):
    alone = make_frame(
        numbers=np.array([8]),
        positions=np.zeros((1, 3)),
        energy=-100.0,
        forces=np.zeros((1, 3)),
        config_type="IsolatedAtom",
        index=40,
    )
    assert report({"train": [*frames, alone]}).outliers == ()
