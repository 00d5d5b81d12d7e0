"""Read a configuration from YAML and say exactly which key or value is wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from bayrace.config.choice import choice, section_name
from bayrace.config.messages import explain
from bayrace.config.presets import named_kind
from bayrace.config.renamed import new_key, new_names, note_old_names
from bayrace.config.schema import Config
from bayrace.config.section import Section
from bayrace.config.target import named_target
from bayrace.core.registry import Registry

S = TypeVar("S", bound=Section)


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, the value and the remedy."""


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration in a YAML file, with "key.sub=value" overrides on top.

    A file that names no output folder gets runs/<name of the file>.
    """
    path = Path(path)
    raw = {"output": f"runs/{path.stem}"} | read_yaml(path)
    return make_config(raw, overrides, source=str(path))


def make_config(
    raw: Mapping[str, Any], overrides: Iterable[str] = (), *, source: str = "configuration"
) -> Config:
    """The configuration in a mapping, with "key.sub=value" overrides on top."""
    return make_section(Config, raw, overrides, source=source)


def make_section(section: type[S], raw: Any, overrides: Iterable[str] = (), *, source: str) -> S:
    """A section from a mapping and "key.sub=value" overrides; errors name every wrong key."""
    values = new_names(copy.deepcopy(dict(raw) if isinstance(raw, Mapping) else raw))
    for override in overrides:
        apply_override(values, override)
    try:
        return section.model_validate(new_names(values))
    except (OverflowError, RecursionError) as error:
        raise ConfigError(f"{source}: a value is too large or too deep ({error})") from None
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in explain(error, section))
        raise ConfigError(f"{source}:\n{problems}") from None


def make_method(registry: Registry[Any], name: str, values: Mapping[str, Any]) -> Any:
    """A method by its name with these options; errors name every wrong one."""
    method = registry.find(name)
    section = choice(type(method).__name__, registry, default=name)
    options = {section_name(method): dict(values)} if values else {}
    return make_section(section, {"kind": name, **options}, source=name).method


def dump_config(config: Config) -> str:
    """The configuration as YAML with every value written out."""
    return yaml.safe_dump(plain_values_of(config), sort_keys=False, allow_unicode=True)


def plain_values_of(
    section: Section, *, exclude: Any = None, defaults: bool = True
) -> dict[str, Any]:
    """A section as plain values, as JSON and YAML have them; without `defaults`, what differs."""
    return section.model_dump(mode="json", exclude=exclude, exclude_defaults=not defaults)


def changed(section: S, **values: Any) -> S:
    """The section with other values of some keys, which are not checked again."""
    return section.model_copy(update=values)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; sections without content are left out, but for data."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; `bayrace template > {path}` writes one to start from"
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; give a YAML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file; give a YAML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error}); check its permissions") from None
    except Exception as error:  # bad dates, numbers of thousands of digits, nesting without end
        raise ConfigError(f"{path}: not valid YAML: {_short(error)}") from None
    _check_nesting(raw, str(path))
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        kind = type(raw).__name__
        raise ConfigError(f"{path}: holds a {kind}; a configuration has sections data, model, ...")
    note_old_names(raw, str(path))
    return {
        str(key): value
        for key, value in new_names(raw).items()
        if not (key != "data" and value is None)
    }


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set the dotted key of "key.sub=value" in place."""
    key, separator, text = override.partition("=")
    if not separator or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"override {override!r}: write key.sub=value, such as train.lr=0.005")
    put(values, new_key(key.strip()), _yaml_value(text, override))


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in place; sections on the way that are not there are made."""
    parts = [part.strip() for part in key.split(".")]
    section = values
    for part in parts[:-1]:
        named = named_target if part == "target" else named_kind
        inside = named(section.get(part))
        if not isinstance(inside, dict):
            inside = {}
        section[part] = inside
        section = inside
    section[parts[-1]] = value


def _yaml_value(text: str, override: str) -> Any:
    try:
        return yaml_value(text)
    except ValueError:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value") from None


def yaml_value(text: str) -> Any:
    """The value that a piece of YAML means; ConfigError where it means none."""
    try:
        value = yaml.safe_load(text)
    except Exception as error:  # see `read_yaml`
        raise ConfigError(f"{text[:60]!r} is not a YAML value: {_short(error)}") from None
    _check_nesting(value, repr(text[:60]))
    return value


_DEPTH, _VALUES = 20, 100_000  # of a configuration; aliases can make a few lines endless


def _check_nesting(raw: Any, source: str) -> None:
    level, count = [raw], 0
    for _ in range(_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [
            v for values in inner if isinstance(values, Iterable) for v in values if _nested(v)
        ]
        count += len(level)
        if not level:
            return
        if count > _VALUES:
            break
    raise ConfigError(f"{source}: is nested too deeply; a configuration has a few levels")


def _nested(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | set)


def _short(error: Exception) -> str:
    text = (
        f"{type(error).__name__}: {error}" if not isinstance(error, yaml.YAMLError) else str(error)
    )
    return text if len(text) < 500 else f"{text[:500]}..."
