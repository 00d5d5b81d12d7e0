"""Train, fit and calibrate in a line each, and what decides whether a run is one or several."""

from __future__ import annotations

from pathlib import Path

import pytest

import bayrace
from bayrace.config import changed, make_config
from bayrace.data.embedded import embedded_frames
from bayrace.data.write import write_frames
from bayrace.potential.potential import Potential
from bayrace.workflow.start import members_of, train_any

SMALL = {
    "model": {"preset": "tiny"},
    "train": {"max_epochs": 2, "device": "cpu"},
    "loss": {"refit_epochs": 1},
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("lines")
    write_frames(folder / "train.traj", embedded_frames("ethanol-train")[:30])
    write_frames(folder / "other.traj", embedded_frames("ethanol-test")[:25])
    data = {"train": str(folder / "train.traj"), "valid": 0.4}
    return {**SMALL, "data": data, "output": str(folder / "run")}


def test_three_lines(raw: dict[str, object]) -> None:
    potential = bayrace.train(raw, ["train.max_epochs=1"])
    assert isinstance(potential, Potential)
    assert potential.posterior.name == "distance"
    rigid = bayrace.fit(potential, "llpr", ["posterior.llpr.force_rows=0"])
    assert rigid.posterior.name == "llpr"
    assert vars(rigid)["model"] is vars(potential)["model"]  # no second network is built
    other = str(Path(str(raw["output"])).with_name("other.traj"))
    for data in (None, other):
        honest = bayrace.calibrate(rigid, data, method="scale-rms")
        assert honest.calibration is not None
        assert honest.calibration.method == "scale-rms"
        assert vars(honest)["model"] is rigid.model
    with pytest.raises(ValueError, match="were used for training"):
        bayrace.calibrate(rigid, str(Path(str(raw["output"])).with_name("train.traj")))


def test_what_a_run_is(raw: dict[str, object], tmp_path: Path) -> None:
    config = make_config(raw, [f"output={tmp_path}"])
    assert members_of(config) is None
    assert members_of(config, members=3) == 3
    several = changed(config, posterior=config.posterior.choosing("ensemble"))
    assert members_of(several) == 10
    (tmp_path / "ensemble.json").write_text('{"members": 4}')
    assert members_of(config, resume=True) == 4
    assert members_of(config) is None


def test_a_run_goes_on_by_itself(raw: dict[str, object], tmp_path: Path) -> None:
    """Whatever its folder holds: nothing, or a training that was finished."""
    config = make_config(raw, [f"output={tmp_path / 'run'}", "train.max_epochs=1"])
    first, again = train_any(config), train_any(config)
    assert first is not None
    assert again is not None
    assert first.posterior.tensors().keys() == again.posterior.tensors().keys()
    for name, value in first.posterior.tensors().items():
        assert value.equal(again.posterior.tensors()[name])
