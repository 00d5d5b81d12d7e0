"""YAML of trainings, loops and oracles, damaged or hostile."""

from __future__ import annotations

import copy
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from mutate import damaged_bytes, hostile_document, hostile_text

from bayrace.config import ConfigError, dump_config, load_config
from bayrace.config.active import ReplayConfig
from bayrace.config.load import make_section, read_yaml
from bayrace.config.loop import LoopConfig
from bayrace.config.oracle import OracleConfig, make_oracle, parse_oracle

EXPECTED = (ConfigError,)

_WORDS = (
    *("2024-13-45", "2024-02-30T25:61:61", "1" * 5000, "10e400", ".nan", ".inf", "-.inf", "~", "{"),
    *(
        "[" * 300,
        "{a: " * 100,
        "&a [*a]",
        "*x",
        "!!timestamp x",
        "!!int ''",
        "!!float x",
        "!!binary =",
    ),
    *(
        "!!python/object:os.system x",
        "<<: 1",
        "? [1]",
        "0x",
        "1:2:3",
        "'",
        '"',
        "|",
        ">",
        "%",
        "\t",
    ),
    *("!!set {a, b}", "!!omap [a: 1]", "&a", "---", "...", "#", "null", "1e", "0o8", "é"),
)
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

_TRAINING: dict[str, Any] = {
    "seed": 1,
    "output": "runs/x",
    "data": {
        "train": ["a.xyz"],
        "valid": 0.1,
        "test": {"t": "b.xyz"},
        "references": {"H": -13.6},
        "config_weights": {"hot": 0.5},
    },
    "model": {
        "preset": "tiny",
        "cutoff": 5.0,
        "layers": 2,
        "hidden": "8x0e+8x1o",
        "radial_hidden": [8],
    },
    "loss": {"kind": "nll_jef", "energy": 1.0, "forces": 100.0},
    "train": {
        "lr": 0.01,
        "max_epochs": 10,
        "max_time": "30m",
        "betas": [0.9, 0.99],
        "device": "cpu",
    },
    "posterior": {"kind": "swag", "swag": {"lr": 0.01, "samples": 4}},
}
_ORACLE: dict[str, Any] = {
    "kind": "command",
    "command": {
        "command": "vasp {input}",
        "input": "POSCAR",
        "output": "vasprun.xml",
        "files": ["INCAR"],
    },
}
_LOOP: dict[str, Any] = {
    "output": "runs/loop",
    "data": {"train": "a.xyz", "valid": 0.1},
    "explore": {
        "temperatures": [300, 600.0],
        "steps": 100,
        "every": 20,
        "rule": {"bound": 0.5, "probability": 0.05},
    },
    "select": {"by": "bald-ef", "budget": 10, "apart": 0.02},
    "oracle": _ORACLE,
    "label": {"workers": 2, "timeout": "1h"},
    "tune": {"epochs": 10, "rehearse": 20},
    "stop": {"labels": 10, "rounds": 3},
}
_ONWARD: dict[str, Any] = {"potential": "m.bayrace", "test": {"hot": "h.xyz"}, "oracle": _ORACLE}
_REPLAY: dict[str, Any] = {"model": "m.bayrace", "pools": {"hot": "h.xyz"}, "budgets": [1, 2]}
_NEWCOMER: dict[str, Any] = {
    "data": {"train": "a.xyz"},
    "calibrate": "scale",
    "posterior": {"kind": "distance", "distance": {"power": 1.3, "regularisation": 0.01}},
}


def write_case(number: int, draw: random.Random, folder: Path) -> Path:
    """One file."""
    path = folder / "case.yaml"
    base = _bases(folder)[number % len(_bases(folder))]
    text = yaml.safe_dump(base)
    kind = draw.random()
    if kind < 0.15:
        path.write_bytes(damaged_bytes(text.encode(), draw))
    elif kind < 0.4:
        path.write_text(hostile_text(text, draw, _WORDS), encoding="utf-8", errors="replace")
    elif kind < 0.45:
        path.write_text(_BOMB + text.replace("10", "*i"), encoding="utf-8")
    elif kind < 0.5:
        path.write_text(text + f"x: {draw.choice('[{')}" * 5000, encoding="utf-8")
    else:
        document = hostile_document(copy.deepcopy(base), draw)
        try:
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
        except (ValueError, RecursionError, yaml.YAMLError):  # what cannot be written
            path.write_text("[" * 2000, encoding="utf-8")
    return path


def try_case(path: Path) -> str:
    """Take it for every kind of configuration."""
    results = [_refused(path, take) for take in (_training, _loop, _replay, _oracle)]
    return "used" if not all(results) else "refused"


@cache
def _bases(folder: Path) -> list[dict[str, Any]]:
    """What is damaged; whole, each must be accepted, or its damage would show nothing."""
    bases = (
        *((_TRAINING, _training), (_NEWCOMER, _training), (_LOOP, _loop), (_ONWARD, _loop)),
        *((_REPLAY, _replay), ({"oracle": _ORACLE}, _oracle)),
    )
    path = folder / "base.yaml"
    for base, take in bases:
        path.write_text(yaml.safe_dump(base), encoding="utf-8")
        take(path)
    return [base for base, _ in bases]


def _refused(path: Path, take: Any) -> bool:
    try:
        take(path)
    except ConfigError:
        return True
    return False


def _training(path: Path) -> None:
    dump_config(load_config(path, ["train.lr=0.001"]))


def _loop(path: Path) -> None:
    make_section(LoopConfig, read_yaml(path), source=str(path))


def _replay(path: Path) -> None:
    make_section(ReplayConfig, read_yaml(path), source=str(path))


def _oracle(path: Path) -> None:
    chosen: OracleConfig = parse_oracle(str(path), {})
    if chosen.kind == "command":
        assert make_oracle(chosen, timeout=None).method
