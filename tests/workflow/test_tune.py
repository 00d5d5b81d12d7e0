"""Fine-tuning small potentials of ethanol on hot frames."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bayrace.config import ConfigError, make_config
from bayrace.config.active import TuneConfig
from bayrace.data.embedded import embedded, embedded_frames
from bayrace.data.frame import LabelKeys
from bayrace.data.read import read_frames
from bayrace.data.split import fingerprint, frame_hashes
from bayrace.data.write import write_frames
from bayrace.evaluate.metrics.accuracy import accuracy
from bayrace.potential.potential import Potential
from bayrace.workflow import train as run
from bayrace.workflow.ensemble import member_config, stack
from bayrace.workflow.member import SideBySide, load_member
from bayrace.workflow.tune import fine_tune, training_frames

ALONE = SideBySide(workers=1, pin=False)
KEYS = LabelKeys(energy=None, forces=None, stress=None, virial=None, config_type=None)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Twelve frames, four epochs at a rate that learns something in them."""
    return make_config(
        {
            "seed": 5,
            "output": str(tmp_path_factory.mktemp("start") / "run"),
            "data": {"train": f"{embedded('ethanol-train')}@:16", "valid": 4},
            "model": {"preset": "tiny", "dtype": "float64"},
            "train": {
                "max_epochs": 4,
                "lr": 0.01,
                "batch_size": 4,
                "device": "cpu",
                "threads": 1,
            },
        }
    )


@pytest.fixture(scope="module")
def start(config):
    """The file of an ensemble of two, trained here rather than in processes."""
    configs = [member_config(config, index, threads=1) for index in range(2)]
    members = [run.train(each).potential for each in configs]
    path = Path(config.output) / "model.bayrace"
    stack(config, members, failed=[]).save(path)
    return path


@pytest.fixture(scope="module")
def hot():
    """Frames at 1000 K."""
    return embedded_frames("ethanol-hot")


def rmse(potential, frames):
    found = accuracy(potential.predict_frames(frames, uncertainty="none")).total.forces
    return found.rmse


def test_frames_are_written_to_the_last_bit(tmp_path, hot):
    typed = [replace(hot[0], config_type="hot"), replace(hot[1], energy=None), hot[2]]
    crystal = embedded_frames("ammonia-train")[0]
    write_frames(tmp_path / "f.traj", [*typed, crystal])
    again = read_frames(tmp_path / "f.traj", keys=KEYS, config_weights={})
    assert frame_hashes(again).tolist() == frame_hashes([*typed, crystal]).tolist()
    assert [frame.config_type for frame in again] == ["hot", "1000K", "1000K", "150K"]


def test_members_go_on_from_their_weights(start, hot, tmp_path):
    potential = Potential.load(start)
    train, valid = training_frames(potential)
    assert (len(train), len(valid)) == (12, 4)
    seen = []
    tune = TuneConfig(epochs=3, lr=1e-3)
    tuned = fine_tune(
        start,
        [*train, *hot[:8]],
        valid,
        tune=tune,
        folder=tmp_path,
        seed=7,
        how=SideBySide(observer=seen.append),
    )
    assert {member.state for member in seen[-1]} == {"finished"}
    assert tuned.spec == potential.spec
    assert tuned.references == potential.references
    assert tuned.posterior.samples == 2
    assert tuned.fingerprint == fingerprint([*train, *hot[:8]])
    assert set(frame_hashes(hot[:8])) < set(tuned.frames["train"])
    assert tuned.distances.gap(hot[0]).size < potential.distances.gap(hot[0]).size
    assert rmse(tuned, hot[8:30]) < rmse(potential, hot[8:30])
    for name, value in potential.members.items():
        moved = (tuned.members[name] - value).abs().max()
        assert name == "radial" or 0 < moved < 0.1, name  # 15 steps of at most 1e-3
    histories = sorted((tmp_path / "run").glob("member-*/history.jsonl"))
    written = [path.stat().st_mtime_ns for path in histories]
    again = fine_tune(start, [*train, *hot[:8]], valid, tune=tune, folder=tmp_path, seed=7)
    assert all(torch.equal(again.members[k], v) for k, v in tuned.members.items())
    assert len(written) == 2
    assert [path.stat().st_mtime_ns for path in histories] == written  # nothing is trained twice


def test_old_frames_are_rehearsed(start, hot, tmp_path):
    potential = Potential.load(start)
    train, valid = training_frames(potential)
    mixed = [*hot[:2], *train, *hot[2:4]]
    tune = TuneConfig(epochs=2, rehearse=4, batch_size=4, refit_epochs=0)
    tuned = fine_tune(start, mixed, valid, tune=tune, folder=tmp_path, how=ALONE)
    assert tuned.config["train"]["rehearse"] == {"known": 12, "take": 4}
    assert set(tuned.frames["train"]) == set(frame_hashes(mixed))  # all count as learnt
    log = (tmp_path / "run" / "member-0" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [2, 4]
    tuned.save(tmp_path / "tuned.bayrace")
    again = fine_tune(
        tmp_path / "tuned.bayrace", mixed, valid, tune=TuneConfig(epochs=1, refit_epochs=0),
        folder=tmp_path / "again", how=ALONE,
    )  # fmt: skip
    assert again.config["train"]["rehearse"] is None


def test_an_interrupted_one_goes_on_to_the_same_end(start, hot, tmp_path):
    train, valid = training_frames(Potential.load(start))
    member = load_member(str(start), 0)
    member = replace(member, config=member.config | {"posterior": "point"})
    member.save(tmp_path / "one.bayrace")
    found = {}
    for name, steps in (("whole", ()), ("parts", (0, 3))):
        for most in (*steps, 99):
            asked = iter(range(100))
            found[name] = fine_tune(
                tmp_path / "one.bayrace",
                [*train, hot[0]],
                valid,
                tune=TuneConfig(epochs=2),
                folder=tmp_path / name,
                how=SideBySide(stop=lambda most=most, asked=asked: next(asked) >= most),
            )
            assert (found[name] is None) == (most != 99)
    for key, value in found["whole"].members.items():
        assert torch.equal(found["parts"].members[key], value), key


@pytest.mark.parametrize("kind", ["point", "llpr"])
def test_other_posteriors_are_trained_and_fitted_anew(config, hot, tmp_path, kind):
    small = config.model_copy(
        update={
            "output": str(tmp_path / "start"),
            "posterior": config.posterior.model_copy(update={"kind": kind}),
        }
    )
    potential = run.train(small).potential
    train, valid = training_frames(potential)
    tuned, scratch = (
        fine_tune(
            tmp_path / "start" / "model.bayrace",
            [*train, *hot[:4]],
            valid,
            tune=TuneConfig(epochs=1, lr=1e-4, start=begin),
            folder=tmp_path / begin,
        )
        for begin in ("checkpoint", "scratch")
    )
    assert tuned.posterior.name == scratch.posterior.name == kind
    assert scratch.references == potential.references
    assert rmse(tuned, valid) == pytest.approx(rmse(potential, valid), rel=0.3)
    assert rmse(scratch, valid) > 1.3 * rmse(potential, valid)  # an epoch at this rate is nothing
    if kind == "llpr":
        assert float(tuned.predict(hot[9]).energy.epistemic) > 0


def test_other_data_are_refused(start):
    potential = Potential.load(start)
    assert np.isin(frame_hashes(training_frames(potential)[1]), potential.frames["valid"]).all()
    with pytest.raises(ConfigError, match="restore the files"):
        training_frames(replace(potential, fingerprint="0" * 64))
