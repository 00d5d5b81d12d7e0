"""`bayrace train DATA --from MODEL`: all of a network, or its last layer, ours or another's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import bayrace
from bayrace import models
from bayrace.cli.main import app
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import Frame
from bayrace.data.write import write_frames
from bayrace.evaluate.evaluation import evaluate
from bayrace.label.oracle import labelled
from bayrace.models.noise import Lambdas
from bayrace.models.partial import LastLayerOnly
from bayrace.posterior.point import Point
from bayrace.potential.potential import Potential
from bayrace.testing import random_frame
from bayrace.testing.modules import TinySpec

FEW = {
    "model": {"preset": "tiny"},
    "train": {"max_epochs": 1, "device": "cpu"},
    "loss": {"refit_epochs": 0},
}


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("further")
    frames = embedded_frames("ethanol-train")
    write_frames(folder / "old.traj", frames[:20])
    write_frames(folder / "new.traj", frames[40:60])
    data = {"train": str(folder / "old.traj"), "valid": 0.2}
    bayrace.train({**FEW, "data": data, "output": str(folder / "run")})
    return folder


def weights(path: Path) -> dict[str, object]:
    drawn = Potential.load(path).posterior.draw(1, seed=0)
    return {name: value[0] for name, value in drawn.items()}


@pytest.mark.parametrize("layers", ["all", "last"])
def test_from_the_command_line(folder: Path, layers: str) -> None:
    model, output = folder / "run" / "model.bayrace", folder / layers
    some = ["-s", f"output={output}", "-s", "tune.epochs=2", "--layers", layers, "--rehearse", 4]
    run("train", folder / "new.traj", "--from", model, *some)
    tuned = Potential.load(output / "model.bayrace")
    assert tuned.calibration is not None
    assert tuned.statistics["train_frames"] == 16 + 18  # rehearsed ones are of the training, too
    before, after = weights(model), weights(output / "model.bayrace")
    moved = {name for name, value in before.items() if not value.equal(after[name])}  # type: ignore[attr-defined]
    free = set(LastLayerOnly(tuned.model, before).free)  # type: ignore[arg-type]
    assert moved == free if layers == "last" else moved > free


def test_twice_the_same_bits(folder: Path) -> None:
    """Tensors come out of files in any order, and sums over them followed it."""
    model, found = folder / "run" / "model.bayrace", []
    for name in ("one", "other"):
        output = folder / name
        some = ["-s", f"output={output}", "-s", "tune.epochs=2", "--rehearse", 4]
        run("train", folder / "new.traj", "--from", model, *some)
        found.append(Potential.load(output / "model.bayrace"))
    one, other = (potential.posterior.tensors() for potential in found)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert found[0].calibration == found[1].calibration


def test_without_the_old_data(folder: Path, tmp_path: Path) -> None:
    potential = Potential.load(folder / "run" / "model.bayrace")
    potential.config["data"]["train"] = [str(tmp_path / "gone.traj")]
    potential.save(tmp_path / "moved.bayrace")
    new, output = folder / "new.traj", f"output={tmp_path / 'run'}"
    common = ["train", new, "--from", tmp_path / "moved.bayrace", "-s", output]
    assert "gone.traj" in run(*common, "-s", "tune.epochs=1", code=2)
    run(*common, "-s", "tune.epochs=1", "--rehearse", 0)
    assert Potential.load(tmp_path / "run" / "model.bayrace").statistics["train_frames"] == 18
    assert "with --from the rest is as" in run(*common, "-s", "train.lr=0.1", code=2)


def test_a_network_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last layer learns what is wrong with it by a factor of two."""
    monkeypatch.setattr(models.MODELS, "_registered", {})
    models.register(TinySpec)
    spec = TinySpec((11, 17), 4.5, seed=1)
    frames = [random_frame((11, 17), 6, seed=seed, apart=2.0) for seed in range(60)]
    write_frames(tmp_path / "first.traj", [_doubled(spec, frame) for frame in frames[:30]])
    write_frames(tmp_path / "new.traj", [_doubled(spec, frame) for frame in frames[30:]])
    bayrace.adopt(spec, tmp_path / "first.traj", shift="none").save(tmp_path / "a.bayrace")
    common = ["train", tmp_path / "new.traj", "--from", tmp_path / "a.bayrace"]
    common += ["-s", f"output={tmp_path / 'run'}", "-s", "tune.epochs=40", "-s", "tune.lr=0.1"]
    assert "--layers last" in run(*common, code=2)
    run(*common, "--layers", "last")
    test = [_doubled(spec, random_frame((11, 17), 6, seed=99, apart=2.0))]
    found = [
        float(np.abs(evaluate(Potential.load(tmp_path / file), test, name="t").forces.error).mean())
        for file in ("a.bayrace", "run/model.bayrace")
    ]
    assert found[1] < 0.3 * found[0]


def _doubled(spec: TinySpec, frame: Frame) -> Frame:
    """Labelled with twice what the network says."""
    network = Potential(
        spec=spec,
        posterior=Point(spec.build().init(0)),
        references=dict.fromkeys(spec.elements, 0.0),
        lambdas=Lambdas(1.0, 1.0, 1.0),
        statistics={},
        config={},
        fingerprint="",
    )
    found = network.predict(frame)
    energy, forces = float(found.energy.mean[0]), found.forces.mean.numpy(force=True)
    return labelled(frame, {"energy": 2 * energy, "forces": 2 * forces})
