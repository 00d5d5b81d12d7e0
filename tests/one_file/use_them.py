"""Run by the test, where the files of CONTRIBUTING are installed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import ase.io
import pytest
import torch
import yaml
from theirs.acquisition import Tallest
from theirs.model import SpringySpec
from theirs.oracle import Springs
from theirs.recalibration import Median
from typer.testing import CliRunner

import bayrace
from bayrace.calibrate.fit import fit_calibration
from bayrace.cli.main import app
from bayrace.config import ConfigError, make_config
from bayrace.data.frame import frame_to_atoms
from bayrace.potential.potential import Potential
from bayrace.testing import (
    EXAMPLES,
    check_acquisition,
    check_derivatives,
    check_oracle,
    check_posterior,
    check_recalibration,
    check_symmetries,
    random_frame,
)


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == code, (arguments, done.output, done.exception)
    return done.output


def conformance() -> None:
    frame = random_frame((1, 8), 5, seed=0, apart=0.9)
    model = SpringySpec((1, 8), 4.0, 6).build()
    params = model.init(0, dtype=torch.float64)
    check_symmetries(model, params, frame)
    check_derivatives(model, params, frame)
    check_posterior(EXAMPLES["jitter"](model, params), model)
    check_recalibration(partial(fit_calibration, method=Median(0.6)))
    check_oracle(Springs(2.0), frame)


def by_configuration() -> Potential:
    structures = [
        frame_to_atoms(random_frame((1, 8), 5, seed=seed, apart=0.9)) for seed in range(30)
    ]
    ase.io.write("frames.xyz", structures)
    run("label", "frames.xyz", "--oracle", "springs", "-a", "stiffness=2", "-o", "labelled.xyz")
    config = {
        "data": {"train": "labelled.xyz", "valid": 0.3},
        "model": {"kind": "springy", "functions": 8},
        "loss": {"kind": "mse", "forces": 1.0},
        "posterior": {"kind": "jitter", "jitter": {"width": 0.02}},
        "calibrate": {"kind": "median", "median": {"quantile": 0.6}},
        "train": {"max_epochs": 3, "device": "cpu"},
    }
    Path("run.yaml").write_text(yaml.safe_dump(config))
    run("train", "run.yaml", "-s", "posterior.jitter.samples=5")
    potential = Potential.load("runs/run/model.bayrace")
    assert (potential.spec.name, potential.posterior.name) == ("springy", "jitter")
    assert potential.posterior.options() == {"width": 0.02, "samples": 5}
    assert potential.spec.functions == 8
    assert potential.calibration is not None
    assert potential.calibration.method == "median"
    assert float(potential.predict(structures[0]).energy.std[0]) > 0
    return potential


def by_command(potential: Potential) -> None:
    model = "runs/run/model.bayrace"
    run("calibrate", model, "--method", "median", "-a", "quantile=0.4", "-o", "again.bayrace")
    more = ["--posterior", "jitter", "-s", "posterior.jitter.width=0.1", "--output", "w.bayrace"]
    run("fit", "runs/run/point.bayrace", *more)
    assert Potential.load("w.bayrace").posterior.options()["width"] == 0.1
    chosen = ["-m", model, "-n", "3", "--by", "tallest", "-a", "factor=2", "-o", "tall.xyz"]
    ase.io.write(
        "pool.xyz",
        [frame_to_atoms(random_frame((1, 8), 5, seed=s, apart=0.9)) for s in range(50, 60)],
    )
    run("select", "pool.xyz", *chosen)
    assert len(ase.io.read("tall.xyz", ":")) == 3
    frames = [random_frame((1, 8), 5, seed=s, apart=0.9) for s in range(50, 56)]
    check_acquisition(Tallest(), potential, frames)
    assert "factor" in run("select", "pool.xyz", *chosen[:-3], "factor=-1", "--overwrite", code=2)


def told() -> None:
    assert "Springs between all atoms of a molecule" in run("label", "--help")
    assert "tallest" in run("select", "--help")
    assert "σ such that a quantile" in run("calibrate", "--help")
    assert "Weights that jitter alike" in run("fit", "--help")
    template = run("template")
    assert "Standard deviation of every weight." in template
    assert "Of the absolute errors." in template
    schema = json.loads(run("schema"))
    assert schema["$defs"]["JitterOptions"]["properties"]["width"]["exclusiveMinimum"] == 0
    for key, hint in (
        ("posterior.jitter.widht=1", "did you mean posterior.jitter.width"),
        ("posterior.jitter.width=-1", "must be greater than 0"),
        ("model.functons=3", "unknown key"),
    ):
        with pytest.raises(ConfigError, match=hint):
            make_config({"data": {"train": "x.xyz"}, "model": {"kind": "springy"}}, [key])


conformance()
by_command(by_configuration())
told()
print("all five were used with", Path(bayrace.__file__).parents[1])
