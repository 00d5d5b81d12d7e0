"""Kinds of values in a configuration: paths, splits, reference energies, durations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from bayrace.config.durations import parse_duration


def _paths(value: Any) -> Any:
    """One path or a list of paths, as a tuple of texts."""
    if isinstance(value, str | Path):
        value = [value]
    good = isinstance(value, list | tuple) and all(isinstance(item, str | Path) for item in value)
    if not good or not value or not all(str(item).strip() for item in value):
        raise ValueError("must be a path, a glob such as data/*.xyz, or a non-empty list of them")
    return tuple(str(item) for item in value)


def _split(value: Any) -> Any:
    """A fraction, a count, or paths."""
    if isinstance(value, bool) or value is None:
        raise ValueError("must be a fraction between 0 and 1, a number of structures, or path(s)")
    if isinstance(value, int) and value < 1:
        raise ValueError("as a whole number it counts structures and must be at least 1")
    if isinstance(value, float) and not 0 < value < 1:
        raise ValueError("as a fraction it must lie strictly between 0 and 1; counts have no point")
    return value if isinstance(value, int | float) else _paths(value)


def _named_paths(value: Any) -> Any:
    """{name: path(s)}, or paths named after their files."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {str(name): _paths(paths) for name, paths in value.items()}
    paths = _paths(value)
    stems = [Path(path.split("@")[0]).name.split(".")[0] for path in paths]
    repeated = {stem for stem in stems if stems.count(stem) > 1}
    names = [path if stem in repeated else stem for path, stem in zip(paths, stems, strict=True)]
    return {name: (path,) for name, path in zip(names, paths, strict=True)}


def _references(value: Any) -> Any:
    if value == "auto":
        return value
    if not isinstance(value, Mapping) or not value:
        raise ValueError('must be "auto" or a mapping such as {H: -13.6, O: -2041.3} in eV')
    return value


def _sinks(value: Any) -> Any:
    """One name or a list of names."""
    return (value,) if isinstance(value, str) else () if value is None else value


Sink = Literal["tensorboard", "wandb"]
Sinks = Annotated[
    tuple[Sink, ...], BeforeValidator(_sinks, json_schema_input_type=Sink | list[Sink] | None)
]
Paths = Annotated[tuple[str, ...], BeforeValidator(_paths, json_schema_input_type=str | list[str])]
NamedPaths = Annotated[
    dict[str, tuple[str, ...]],
    BeforeValidator(
        _named_paths, json_schema_input_type=str | list[str] | dict[str, str | list[str]] | None
    ),
]
Validation = Annotated[
    float | int | tuple[str, ...],
    BeforeValidator(_split, json_schema_input_type=float | int | str | list[str]),
]
References = Annotated[
    Literal["auto"] | dict[str, float],
    BeforeValidator(_references, json_schema_input_type=Literal["auto"] | dict[str, float]),
]
Folder = Annotated[str, AfterValidator(os.path.expanduser)]  # no shell has seen its ~
Seconds = Annotated[float, BeforeValidator(parse_duration, json_schema_input_type=float | str)]
