"""Options of 0.1 that have other names now still work, and say what they are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from click.testing import Result

from bayrace.cli.main import app
from bayrace.cli.renamed import RENAMED

Command = Callable[..., Result]


def options_of_commands() -> dict[str, set[str]]:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in commands.items()
    }


def test_the_table_names_options_that_exist() -> None:
    known = set().union(*options_of_commands().values())
    assert set(RENAMED.values()) <= known
    assert not set(RENAMED) & known


@pytest.mark.parametrize("written", [("--bound", "100"), ("--bound=100",)])
def test_an_old_option_works(
    written: tuple[str, ...],
    bayrace: Command,
    model: Path,
    data: Path,
    tmp_path: Path,
) -> None:
    common = ("md", model, f"{data}/test.xyz@0", "--temperature", 300, "--steps", 2, "--gap", "off")
    result = bayrace(*common, *written, "-o", tmp_path / "md.traj")
    assert result.exit_code == 0, result.output
    assert "note: --bound is called --max-force-error now; the old name" in result.stderr
    again = bayrace(*common, "--bound", 0, "-o", tmp_path / "again.traj")
    assert again.exit_code == 2
    assert "max_force_error=0" in again.output


def test_where_there_is_no_such_option_it_is_unknown(bayrace: Command) -> None:
    result = bayrace("template", "--bound", 1)
    assert result.exit_code == 2
    assert "No such option" in result.output
    assert "note:" not in result.output
