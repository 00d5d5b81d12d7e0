"""The configuration as a commented YAML file and as a JSON schema, from the same descriptions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bayrace.config.presets import DEFAULT_PRESET, PRESET_NAMES, plain_values, preset_values
from bayrace.config.schema import Config

_EXAMPLES = {"train": "train.xyz"}
_WIDTH = 96


def json_schema() -> dict[str, Any]:
    """JSON schema of what a configuration file may hold, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Config.model_json_schema()


def template(preset: str = DEFAULT_PRESET) -> str:
    """A YAML configuration with every key, its meaning and its default value."""
    if preset not in PRESET_NAMES:
        raise ValueError(f"preset {preset!r} is unknown; use one of {', '.join(PRESET_NAMES)}")
    head = "# Configuration of a bayrace training run: bayrace train THIS_FILE\n"
    return head + "\n".join(_section(Config, plain_values(preset), preset, indent="")) + "\n"


def _section(
    section: type[BaseModel], values: Mapping[str, Any], preset: str, *, indent: str
) -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield ""
            yield f"{indent}{name}:  # {field.description}"
            given = values.get(name) or preset_values(preset, name)
            given = given | ({"preset": preset} if name == "model" else {})
            yield from _section(inner, given, preset, indent=indent + "  ")
        else:
            yield from _comment(field, indent)
            yield from _value(name, field, values, indent, optional="preset" in values)


def _comment(field: FieldInfo, indent: str) -> Iterator[str]:
    text = str(field.description)
    choices = _choices(field.annotation)
    if choices:
        text += f" One of: {', '.join(choices)}."
    for line in textwrap.wrap(text, _WIDTH - len(indent)):
        yield f"{indent}# {line}"


def _value(
    name: str, field: FieldInfo, values: Mapping[str, Any], indent: str, *, optional: bool
) -> Iterator[str]:
    """The line "key: value"; what the preset already says stays commented out."""
    default = _EXAMPLES.get(name) if field.is_required() else field.get_default()
    value = values.get(name, default)
    mark = "# " if optional and name != "preset" else ""
    yield f"{indent}{mark}{name}: {_yaml(value)}"


def _choices(annotation: Any) -> tuple[str, ...]:
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()


def _yaml(value: Any) -> str:
    """One value as YAML on one line."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
