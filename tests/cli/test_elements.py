"""Simulations with an element that the potential does not know are refused before they begin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ase.io
import pytest
from ase.build import molecule
from typer.testing import CliRunner

from bayrace.cli.main import app
from bayrace.potential.potential import Potential

COMMANDS = {
    "lammps": ["-o", "folder"],
    "ipi": ["--unix", "nobody"],
    "relax": ["-o", "relaxed.xyz"],
    "properties": ["--what", "vibrations"],
    "md": ["--temperature", "300", "--steps", "1"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_elements(
    command: str,
    make_potential: Callable[..., Potential],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_potential(elements=(13, 29)).save("model.bayrace")
    ase.io.write("start.xyz", molecule("H2O"))
    arguments = [command, "model.bayrace", "start.xyz", *COMMANDS[command]]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "start.xyz" in said
    assert "atom 0 is O, which the training data did not have; known elements:" in said
    assert not Path("folder").exists()
