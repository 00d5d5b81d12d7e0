"""The keys of a section, whether it is a pydantic model or the dataclass of a method's options."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel

from bayrace.config.docstrings import attribute_docs
from bayrace.config.model import DEFAULT_KIND, TRAINABLE


class Key(NamedTuple):
    """One key of a section."""

    name: str
    annotation: Any
    description: str
    required: bool
    default: Any


def walk(section: type[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys with their descriptions."""
    for key in keys(section):
        yield prefix + key.name, key.description
        inner = section_of(key.annotation)
        if inner is not None:
            yield from walk(inner, f"{prefix}{key.name}.")


def keys(section: type[Any]) -> Iterator[Key]:
    """The keys of a section in the order of its template."""
    if not is_dataclass(section):
        for name, field in section.model_fields.items():
            default = field.get_default(call_default_factory=True, validated_data={})
            about = str(field.description)
            yield Key(name, field.annotation, about, field.is_required(), default)
        return
    hints = typing.get_type_hints(section, include_extras=True)
    docs = attribute_docs(section)
    own = [name for name in vars(section).get("__annotations__", {}) if name in hints]
    for field in sorted(fields(section), key=lambda each: each.name not in own):
        made = field.default_factory() if field.default_factory is not MISSING else field.default
        about = docs.get(field.name, "")
        yield Key(field.name, hints[field.name], about, made is MISSING, made)


def section_of(annotation: Any) -> type[Any] | None:
    """The section that a key holds, or that it may hold; None for plain values."""
    inside = typing.get_args(annotation)
    if inside and any(each in inside for each in TRAINABLE.values()):
        return TRAINABLE[DEFAULT_KIND]  # type: ignore[no-any-return]
    for each in (annotation, *inside):
        if isinstance(each, type) and (issubclass(each, BaseModel) or is_dataclass(each)):
            return each
    return None
