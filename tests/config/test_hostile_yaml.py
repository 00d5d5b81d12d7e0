"""Configurations that are no configurations end in a ConfigError that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayrace.cli.methods import parse_arguments
from bayrace.config import ConfigError, load_config, make_config
from bayrace.config.load import make_section
from bayrace.config.oracle import OracleConfig, parse_oracle
from bayrace.label.oracle import OracleError
from bayrace.label.oracles.command import CommandOracle

DATA = "data: {train: a.xyz}\n"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "x: " + "[" * 3000,
        DATA + "x: " + "[" * 400 + "]" * 400,
        DATA + "x: 2024-13-45",
        DATA + "seed: " + "1" * 5000,
        DATA + f"seed: {10**400}",
        DATA + f"train: {{lr: {10**400}}}",
        DATA + f"train: {{max_time: {10**400}}}",
        DATA + f"train: {{max_epochs: {10**400}}}",
        DATA + "posterior: {kind: [distance]}",
        DATA + "posterior: {kind: {}}",
        DATA + "calibrate: [scale]",
        DATA + "x: !!timestamp x",
        DATA + "x: !!int ''",
        DATA + "x: &a [*a]",
        DATA + BOMB,
        BOMB + "data: {train: *i}\n",
    ],
)
def test_hostile_yaml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml") as got:
        load_config(path)
    assert len(str(got.value)) < 20_000


@pytest.mark.parametrize("value", ["{", "2024-13-45", "[" * 3000, "1" * 5000])
def test_hostile_arguments(value: str) -> None:
    with pytest.raises(ConfigError, match="not a YAML value"):
        parse_arguments([f"x={value}"])
    with pytest.raises(ConfigError, match="not a YAML value"):
        make_config({"data": {"train": "a.xyz"}}, [f"train.lr={value}"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("command", "", "command.command: '' is not valid"),
        ("command", '""', "is empty"),
        ("command", "vasp 'x", "cannot be split"),
        ("input", "../../x", "outside the folder"),
        ("output", "/etc/passwd", "outside the folder"),
    ],
)
def test_hostile_commands(tmp_path: Path, key: str, value: str, message: str) -> None:
    good = {"command": "vasp", "input": "POSCAR", "output": "vasprun.xml"}
    raw = {"kind": "command", "command": good | {key: value}}
    with pytest.raises(ConfigError, match=message):
        make_section(OracleConfig, raw, source="oracle")
    if value:
        with pytest.raises(OracleError, match=message):
            CommandOracle(**(good | {key: value}))


def test_good_commands_are_taken() -> None:
    raw = {"command": "awk '{print $1}' {input}", "input": "in.xyz", "output": "out.xyz"}
    assert parse_oracle("gfn2", {}).kind == "gfn2"
    assert make_section(OracleConfig, {"kind": "command", "command": raw}, source="x")
