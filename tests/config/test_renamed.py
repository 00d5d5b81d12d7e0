"""Keys of 0.1 that have other names now still work, and say what they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bayrace.config import ConfigError, load_config, make_config
from bayrace.config.active import ReplayConfig
from bayrace.config.load import make_section, plain_values_of, read_yaml
from bayrace.config.loop import LoopConfig
from bayrace.config.messages import known_keys
from bayrace.config.renamed import RENAMED, new_names, old_names
from bayrace.config.schema import Config
from bayrace.config.search import load_search

VALUES = {
    "train.clip": 3.0,
    "train.improvement": 0.01,
    "explore.onward": 0.5,
    "explore.least": 7,
    "explore.look_every": 4,
    "explore.rule.bound": 0.3,
    "explore.rule.over": "max",
    "select.over": "sum",
    "select.apart": 0.1,
}
DATA = {"data": {"train": "train.xyz"}}


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def value_of(content: Any, key: str) -> Any:
    for part in key.split("."):
        content = content[part]
    return content


def root_of(key: str) -> type[Config | LoopConfig]:
    return Config if key.startswith("train.") else LoopConfig


@pytest.mark.parametrize("old", RENAMED)
def test_files_with_old_names_are_read(
    old: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(DATA | nested(old, VALUES[old])))
    section = make_section(root_of(old), read_yaml(file), source="test")
    assert value_of(plain_values_of(section), RENAMED[old]) == VALUES[old]
    (note,) = caplog.messages
    assert note == f"{file}: {old} is called {RENAMED[old]} now; the old name still works"


@pytest.mark.parametrize("old", RENAMED)
def test_old_names_may_override(old: str, caplog: pytest.LogCaptureFixture) -> None:
    raw = DATA | nested(RENAMED[old], None)  # whatever the file says
    section = make_section(root_of(old), raw, [f"{old}={VALUES[old]}"], source="test")
    assert value_of(plain_values_of(section), RENAMED[old]) == VALUES[old]
    assert len(caplog.messages) == 1


def test_stored_configurations_are_read_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    new = plain_values_of(make_config(DATA))
    old = old_names(new)
    assert old != new
    assert "clip" in old["train"]
    assert "max_gradient_norm" not in old["train"]
    assert plain_values_of(make_config(old)) == new == new_names(old)
    assert not caplog.messages


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.clip: unknown key"):
        make_config(DATA | {"train": {"clip": 1.0, "max_gradient_norm": 2.0}})


def test_a_search_may_name_old_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(DATA | {"search": {"space": {"train.clip": [1.0, 10.0]}}}))
    _, search, _ = load_search(file)
    assert list(search.space) == ["train.max_gradient_norm"]
    assert "train.clip is called" in caplog.text


def test_the_table_names_keys_that_exist() -> None:
    known = {key for root in (Config, LoopConfig, ReplayConfig) for key in known_keys(root)}
    assert set(RENAMED.values()) <= known
    assert not set(RENAMED) & known
    assert all(old.rpartition(".")[0] == new.rpartition(".")[0] for old, new in RENAMED.items())


def test_old_names_in_a_preset_of_a_user(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(DATA | {"model": {"preset": "rmd17"}, "train": {"clip": 2.0}}))
    assert load_config(file).train.max_gradient_norm == 2.0  # the preset has another
