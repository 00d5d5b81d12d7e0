"""Every example runs, with fewer data and epochs than a reader would take."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    example("train")(folder, frames=60, epochs=2)
    return folder


def test_train(folder: Path) -> None:
    assert (folder / "train" / "model.bayrace").is_file()


def test_judge(folder: Path) -> None:
    calibration = example("judge")(folder).calibration
    assert calibration is not None
    assert calibration.method == "conformal"


def test_dynamics(folder: Path) -> None:
    reached = example("dynamics")(folder, steps=40)
    assert reached[300] >= reached[2000]


def test_learn(folder: Path) -> None:
    tuned = example("learn")(folder, budget=5, epochs=1)
    assert tuned.statistics["train_frames"] == 48 + 4


def test_sevennet(tmp_path: Path) -> None:
    if importlib.util.find_spec("sevenn") is None:
        pytest.skip("sevenn is not installed")
    assert example("sevennet")(tmp_path, frames=20).posterior.name == "distance"


def test_every_example_is_tested() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    assert all(f'example("{path.stem}")' in here for path in EXAMPLES.glob("*.py"))
