from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer
import yaml
from rich.text import Text

from bayrace.cli.main import app
from bayrace.config import make_config
from bayrace.config.active import ReplayConfig
from bayrace.config.keys import walk
from bayrace.config.loop import LoopConfig
from bayrace.config.schema import Config
from bayrace.config.search import SearchConfig

COMMANDS = ("train", "evaluate", "predict", "validate", "info", "template", "schema", "demo")


def test_help_lists_every_command(bayrace):
    result = bayrace("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f" {command} " in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples(bayrace, command):
    result = bayrace(command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"bayrace {command}" in result.stdout


def test_help_does_not_load_torch():
    code = "import sys, bayrace.cli.main; print([m for m in ('torch', 'ase') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version(bayrace):
    from bayrace import __version__

    assert bayrace("--version").stdout.strip() == __version__


def test_template_is_a_configuration(bayrace):
    result = bayrace("template", "--preset", "rmd17")
    assert make_config(yaml.safe_load(result.stdout)).model.l_max == 3


def test_template_of_an_unknown_preset(bayrace):
    result = bayrace("template", "--preset", "rmd71")
    assert result.exit_code == 2
    assert "preset 'rmd71' is unknown" in result.stderr


def test_schema_is_json(bayrace):
    assert json.loads(bayrace("schema").stdout)["title"] == "Config"


def test_info_of_the_installation(bayrace):
    result = bayrace("info")
    assert result.exit_code == 0
    for word in ("bayrace", "torch", "ase", "kernel", "cpu threads"):
        assert word in result.stdout


def test_info_of_a_potential(bayrace, model):
    result = bayrace("info", model)
    assert result.exit_code == 0
    for word in (
        "H, C, O",
        "point, 1 weight sample",
        "reference of C",
        "λ forces",
        "mean_neighbours",
    ):
        assert word in result.stdout
    fingerprint = result.stdout.split("data fingerprint")[1].split()[0]
    assert len(fingerprint) == 64


def test_debug_shows_where(bayrace, tmp_path):
    plain = bayrace("info", tmp_path / "none.bayrace")
    assert plain.exit_code == 2
    assert "does not exist" in plain.stderr
    assert "Traceback" not in plain.stderr
    assert "Traceback" in bayrace("info", tmp_path / "none.bayrace", "--debug").stderr


def test_help_texts_stand_alone() -> None:
    """A reader of --help has no context: no option says only of what it is, or nothing."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        for option in command.params:
            text = getattr(option, "help", None) or ""
            if not getattr(option, "hidden", False):
                assert len(text) > 7, f"{name} {option.opts}: {text!r}"
                assert not text.startswith(("Of ", "...", "How many", "K.", "fs.")), (name, text)


def test_help_loses_no_brackets() -> None:
    """What rich would take for markup, such as [engines], is escaped."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        texts = [command.help, *(getattr(option, "help", None) for option in command.params)]
        for text in filter(None, texts):
            shown = text.replace("\\[", "[").replace("\b", "")  # which ends paragraphs in typer
            assert Text.from_markup(text).plain == shown, name


def test_keys_stand_alone() -> None:
    roots = (Config, LoopConfig, ReplayConfig, SearchConfig)
    for key, text in (pair for root in roots for pair in walk(root)):
        assert len(text) > 7, f"{key}: {text!r}"
        assert not text.startswith(("Of ", "...", "How many.")), (key, text)
