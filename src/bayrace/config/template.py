"""The configuration as a commented YAML file and as a JSON schema, from the same descriptions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import yaml

from bayrace.config.keys import Key, keys, section_of
from bayrace.config.presets import (
    DEFAULT_PRESET,
    PRESET_NAMES,
    named_kind,
    plain_values,
    preset_values,
)
from bayrace.config.schema import Config
from bayrace.models.race.options import RaceOptions

_EXAMPLES = {"train": "train.xyz"}
_WIDTH = 96


def json_schema() -> dict[str, Any]:
    """JSON schema of what a configuration file may hold, for editors."""
    schema = Config.model_json_schema()
    schema["$defs"][RaceOptions.__name__].pop("required")  # what is left out is in the preset
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def template(preset: str = DEFAULT_PRESET) -> str:
    """A YAML configuration with every key, its meaning and its default value."""
    if preset not in PRESET_NAMES:
        raise ValueError(f"preset {preset!r} is unknown; use one of {', '.join(PRESET_NAMES)}")
    head = "# Configuration of a bayrace training run: bayrace train THIS_FILE\n"
    return head + "\n".join(_section(Config, plain_values(preset), preset, indent="")) + "\n"


def _section(
    section: type[Any], values: Mapping[str, Any], preset: str, *, indent: str
) -> Iterator[str]:
    for key in keys(section):
        inner = section_of(key.annotation)
        if inner is not None and (key.required or key.default is not None):
            yield ""
            yield f"{indent}{key.name}:  # {key.description}"
            given = named_kind(values.get(key.name)) or preset_values(preset, key.name)
            given = given | ({"preset": preset} if key.name == "model" else {})
            yield from _section(inner, given, preset, indent=indent + "  ")
        else:
            yield from _comment(key, indent)
            yield _value(key, values, indent, optional="preset" in values)
            for line in () if inner is None else _section(inner, {}, preset, indent="  "):
                yield f"{indent}#{line}"


def _comment(key: Key, indent: str) -> Iterator[str]:
    text = key.description
    choices = _choices(key.annotation)
    if choices and not all(f"{each}:" in text for each in choices):
        text += f" One of: {', '.join(choices)}."
    for line in textwrap.wrap(text, _WIDTH - len(indent), break_on_hyphens=False):
        yield f"{indent}# {line}"


def _value(key: Key, values: Mapping[str, Any], indent: str, *, optional: bool) -> str:
    """The line "key: value"; what the preset already says stays commented out."""
    default = _EXAMPLES.get(key.name) if key.required else key.default
    value = values.get(key.name, default)
    mark = "# " if optional and key.name != "preset" else ""
    return f"{indent}{mark}{key.name}: {_yaml(value)}"


def _choices(annotation: Any) -> tuple[str, ...]:
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()


def _yaml(value: Any) -> str:
    """One value as YAML on one line."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
