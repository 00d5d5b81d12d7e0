"""Every posterior by one line of configuration, from training and onto a trained network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import Result

from bayrace.core.prediction import Prediction
from bayrace.core.protocols import ClosedForm
from bayrace.data.embedded import embedded_frames
from bayrace.posterior import POSTERIORS
from bayrace.potential.potential import Potential

Command = Callable[..., Result]

SMALL = {
    "swag": ("-o", "posterior.swag.epochs=4", "-o", "posterior.swag.burn_in=0"),
    "ivon": (
        "-o",
        "posterior.ivon.samples=3",
        "-o",
        "posterior.ivon.ess=20000",
        "-o",
        "posterior.ivon.fisher=9",
    ),
    "laplace": (),
    "distance": (),
    "llpr": ("-o", "posterior.llpr.force_samples=4"),
}
FRAMES = embedded_frames("ethanol-hot")[:2]


def moments(potential: Potential) -> Prediction:
    return potential.predict(FRAMES)


@pytest.mark.parametrize("kind", [*SMALL, "shallow"])
def test_train_with_a_posterior(kind: str, trained: Path, tmp_path: Path, bayrace: Command) -> None:
    config = yaml.safe_load((trained / "config.yaml").read_text())
    config = {name: config[name] for name in ("seed", "data", "model", "train")}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config | {"output": str(tmp_path / "run"), "posterior": kind}))
    result = bayrace("train", path, *SMALL.get(kind, ()))
    assert result.exit_code == 0, result.output
    potential = Potential.load(tmp_path / "run" / "model.bayrace")
    assert potential.posterior.name == kind
    found = moments(potential)
    assert (found.energy.epistemic > 0).all()
    assert (torch.linalg.eigvalsh(found.forces.total) > -1e-12).all()
    again = moments(Potential.load(tmp_path / "run" / "model.bayrace"))
    assert torch.equal(found.forces.epistemic, again.forces.epistemic)
    assert potential.calibration is not None
    if kind not in ("ivon", "distance"):
        point = Potential.load(tmp_path / "run" / "point.bayrace")
        assert point.posterior.name == "point"
    if isinstance(potential.posterior, ClosedForm) and kind != "distance":
        torch.testing.assert_close(moments(point).energy.mean, found.energy.mean)


@pytest.mark.parametrize("kind", list(SMALL))
def test_fit_to_a_trained_network(kind: str, model: Path, tmp_path: Path, bayrace: Command) -> None:
    target = tmp_path / "fitted.bayrace"
    scaled = ("-s", "calibrate=scale")
    result = bayrace("fit", model, "--posterior", kind, "--output", target, *SMALL[kind], *scaled)
    assert result.exit_code == 0, result.output
    potential = Potential.load(target)
    assert potential.posterior.name == kind
    assert potential.config["posterior"]["kind"] == kind
    assert (moments(potential).energy.epistemic > 0).all()
    assert potential.calibration is not None
    again = bayrace("fit", target, "--posterior", "llpr", "--output", tmp_path / "again.bayrace")
    keeps_the_network = kind in ("distance", "llpr")
    assert (again.exit_code == 0) == keeps_the_network, again.output
    assert keeps_the_network or f"already has {kind}" in again.output
    shown = bayrace("info", target)
    assert f"{kind}, " in shown.output


def test_every_posterior_is_here() -> None:
    assert {*SMALL, "shallow", "point", "ensemble"} == set(POSTERIORS)


def test_ensemble_by_configuration(trained: Path, tmp_path: Path, bayrace: Command) -> None:
    config = yaml.safe_load((trained / "config.yaml").read_text())
    config = {name: config[name] for name in ("seed", "data", "model", "train")}
    path = tmp_path / "config.yaml"
    posterior = {"kind": "ensemble", "ensemble": {"members": 2}}
    path.write_text(
        yaml.safe_dump(config | {"output": str(tmp_path / "run"), "posterior": posterior})
    )
    result = bayrace("train", path, "--no-pin")
    assert result.exit_code == 0, result.output
    potential = Potential.load(tmp_path / "run" / "model.bayrace")
    assert potential.posterior.name == "ensemble"
    assert potential.posterior.samples == 2
    assert potential.config["posterior"]["ensemble"]["members"] == 2
    refused = bayrace("train", path, "-o", "posterior=swag", "--members", 2, "--overwrite")
    assert refused.exit_code != 0
    assert "swag cannot have members" in refused.output


def test_refusals(model: Path, data: Path, bayrace: Command) -> None:
    unknown = bayrace("fit", model, "--posterior", "llrp")
    assert unknown.exit_code != 0
    assert "llpr" in unknown.output
    other = bayrace("fit", model, "--posterior", "llpr", "-o", f"data.train={data}/test.xyz")
    assert other.exit_code != 0
    assert "not those the potential was trained on" in other.output
    several = bayrace("fit", model, "--posterior", "ensemble")
    assert several.exit_code != 0
    assert "--members" in several.output
    mixed = bayrace("train", data / "config.yaml", "-o", "posterior=shallow", "-o", "loss.kind=mse")
    assert mixed.exit_code != 0
    assert "it has its own loss, shallow" in " ".join(mixed.output.split())


def test_training_files_that_have_moved(bayrace, model, tmp_path):
    lost = bayrace("fit", model, "--posterior", "llpr", "-s", "data.train=gone.xyz")
    assert lost.exit_code == 2
    assert "gone.xyz: no such file" in lost.stderr
    assert "-s data.train=..." in lost.stderr
    replay = tmp_path / "replay.yaml"
    moved = replace(Potential.load(model), config=moved_config(Potential.load(model)))
    moved.save(tmp_path / "moved.bayrace")
    replay.write_text(f"model: {tmp_path}/moved.bayrace\npools: [pool.xyz]\n")
    told = bayrace("replay", replay)
    assert told.exit_code == 2
    assert "start bayrace in the folder of that time" in told.stderr


def moved_config(potential):
    return {**potential.config, "data": {**potential.config["data"], "train": ["gone.xyz"]}}


def test_help_offers_what_can_be_fitted(bayrace: Command) -> None:
    listed = bayrace("fit", "--help").stdout
    for name, method in POSTERIORS.all().items():
        assert (f"  {name} " in listed) is method.fits(), name


@pytest.mark.parametrize("kind", ["ensemble", "shallow", "point"])
def test_what_cannot_be_fitted_is_refused_at_once(kind: str, model: Path, bayrace: Command) -> None:
    result = bayrace("fit", model, "--posterior", kind)
    assert result.exit_code == 2
    assert f"posterior: {kind} cannot be fitted to trained weights" in result.stderr
    assert "training and" not in result.stdout  # no data were read for that
