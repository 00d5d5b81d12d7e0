"""A few structures of ethanol in files, and a potential trained on them for two epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ase.io
import pytest
from click.testing import Result
from typer.testing import CliRunner

from bayrace.cli.main import app
from bayrace.data.embedded import embedded_frames
from bayrace.data.read import frame_to_atoms

Command = Callable[..., Result]
QUICK = ("-o", "model.preset=tiny", "-o", "train.max_epochs=2", "-o", "train.batch_size=4")


@pytest.fixture(scope="session")
def bayrace() -> Command:
    """Run a command as the shell would, in this process."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.xyz (12 structures), test.xyz and hot.xyz (4 each)."""
    folder = tmp_path_factory.mktemp("data")
    for name, count in (("train", 12), ("test", 4), ("hot", 4)):
        atoms = [frame_to_atoms(frame) for frame in embedded_frames(f"ethanol-{name}")[:count]]
        ase.io.write(folder / f"{name}.xyz", atoms, format="extxyz")
    return folder


@pytest.fixture(scope="session")
def trained(data: Path, bayrace: Command) -> Path:
    """The folder of a finished run with two test sets."""
    folder = data / "run"
    config = data / "config.yaml"
    config.write_text(
        f"output: {folder}\ndata:\n  train: {data}/train.xyz\n  valid: 3\n"
        f"  test: {{cold: {data}/test.xyz, hot: {data}/hot.xyz}}\n"
        "model: {preset: tiny}\ntrain: {max_epochs: 2, batch_size: 4}\n"
        "posterior: point\ncalibrate: none\n",
        encoding="utf-8",
    )
    result = bayrace("train", config)
    assert result.exit_code == 0, result.output
    (folder / "printed.txt").write_text(result.stdout, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def model(trained: Path) -> Path:
    """The potential of that run."""
    return trained / "model.bayrace"
