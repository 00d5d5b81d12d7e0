"""`bayrace md` as users run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ase.io
import pytest
from click.testing import Result

Command = Callable[..., Result]


@pytest.mark.parametrize("name", ["run.traj", "run.xyz"])
def test_a_run_to_its_end(
    name: str, bayrace: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    output = tmp_path / name
    common = ("md", model, f"{data}/test.xyz@0", "--temperature", 300, "--steps", 12)
    result = bayrace(*common, "--action", "record", "--every", 5, "-o", output)
    assert result.exit_code == 0, result.output
    assert "12 steps, 0.006 ps" in result.output
    assert "ns/day" in result.output
    assert "not calibrated" in result.output
    images = ase.io.read(output, index=":")
    assert {0, 5, 10, 12} <= {image.info["step"] for image in images}
    assert all(image.info["energy_uncertainty"] > 0 for image in images)
    again = bayrace(*common, "-o", output)
    assert again.exit_code == 2
    assert "--overwrite" in again.output


def test_a_run_that_stops(bayrace: Command, model: Path, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.traj"
    common = ("md", model, f"{data}/hot.xyz@1", "--temperature", 500, "--steps", 5, "-o", output)
    result = bayrace(*common, "--max-force-error", 0.001)
    assert result.exit_code == 3, result.output
    assert "stopped: step 0 (0 fs): the force on some atom is wrong" in result.output
    assert len(ase.io.read(output, index=":")) == 1
    warned = bayrace(*common, "--max-force-error", 0.001, "--action", "warn", "--overwrite")
    assert warned.exit_code == 0
    assert warned.output.count("warning: step") == 1
    assert "6 of the looks broke the rule" in warned.output
    calm = bayrace(*common, "--max-force-error", 100, "--overwrite")
    assert calm.exit_code == 0, calm.output


def test_distances_that_the_training_lacks(
    bayrace: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run.traj"
    common = ("md", model, f"{data}/hot.xyz@1", "--temperature", 500, "--steps", 5, "-o", output)
    result = bayrace(*common, "--max-force-error", 100, "--gap", 1e-4)
    assert result.exit_code == 3, result.output
    assert "Å apart; the third nearest such distance of the training data" in result.output
    told = bayrace(*common, "--max-force-error", 100, "--overwrite")
    assert told.exit_code == 0, told.output
    assert "widest gap" in told.output
    assert all(image.info["distance_gap"] >= 0 for image in ase.io.read(output, index=":"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ensemble", "npt"), "use nvt"),
        (("--temperature", "-5"), "temperature=-5"),
        (("--max-force-error", "0"), "max_force_error=0"),
        (("--gap", "0"), "gap=0"),
        (("--bias", "1"), "does not know what it does not know"),
        (("--output", "run.dcd"), ".traj or an .xyz"),
    ],
)
def test_mistakes(
    options: tuple[str, ...],
    message: str,
    bayrace: Command,
    model: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    common = ("md", model, f"{data}/test.xyz@0", "--temperature", 300, "--steps", 2)
    result = bayrace(*common, *options)
    assert result.exit_code == 2
    assert message in result.output


def test_one_start(bayrace: Command, model: Path, data: Path) -> None:
    result = bayrace("md", model, data / "test.xyz", "--temperature", 300, "--steps", 2)
    assert result.exit_code == 2
    assert "holds several structures; choose one" in result.output


def test_what_explodes_is_an_error_with_a_remedy(
    bayrace: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    common = ("md", model, f"{data}/test.xyz@0", "--steps", 60, "-o", tmp_path / "run.traj")
    absurd = bayrace(*common, "--temperature", 1e7)
    assert absurd.exit_code == 2
    assert "above 100000 K no bonds are left" in absurd.stderr
    hot = (*common, "--temperature", 99000, "--action", "off", "--timestep", 1)
    molten = bayrace(*hot)
    assert molten.exit_code == 2
    assert "fly apart" in molten.stderr or "closer than" in molten.stderr
    long = bayrace(
        *common, "--temperature", 300, "--timestep", 50, "--action", "off", "--overwrite"
    )
    assert long.exit_code == 2
    assert "the time step of 50 fs is long" in long.stderr
    assert "remove the frame" not in long.stderr


def test_what_is_not_modelled_is_no_number(bayrace: Command, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "point"
    keys = (
        "loss.kind=mse",
        "posterior=point",
        "calibrate=none",
        "model.preset=tiny",
        "data.valid=3",
    )
    settings = [
        part for key in (*keys, f"output={folder}", "train.max_epochs=1") for part in ("-s", key)
    ]
    trained = bayrace("train", data / "train.xyz", *settings)
    assert trained.exit_code == 0, trained.output
    model = folder / "model.bayrace"
    common = ("md", model, f"{data}/test.xyz@0", "--temperature", 100, "--steps", 1)
    ran = bayrace(*common, "-o", tmp_path / "run.xyz", "--gap", 10)
    assert ran.exit_code == 0, ran.output
    assert "has no σ at all" in ran.output
    assert "σ_E not modelled  σ_F not modelled\n" in ran.output
    assert "–: not modelled" in bayrace("evaluate", model, f"{data}/test.xyz").output
