"""Sections made of the dataclass that they configure, whose options are written once, beside it.

Where a key may be given in another way than the code takes it (durations), or where a section has
keys of its own beside those of a dataclass, a pydantic model is made of its fields. Elsewhere the
dataclass is the section as it is, see `bayrace.config.section`.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import Field

from bayrace.config.docstrings import attribute_docs

T = TypeVar("T")


def keys_from(
    options: Any,
    *,
    without: Collection[str] = (),
    types: Mapping[str, Any] = MappingProxyType({}),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The fields of a dataclass for pydantic's create_model, some of other types or defaults."""
    hints = typing.get_type_hints(options, include_extras=True) | dict(types)
    docs = attribute_docs(options)
    found: dict[str, Any] = {}
    for each in fields(options):
        if each.name not in without:
            own = ... if each.default is MISSING else each.default
            key: Any = Field(default=defaults.get(each.name, own), description=docs[each.name])
            found[each.name] = (hints[each.name], key)
    return found


def made_of(options: type[T], section: Any, **more: Any) -> T:
    """The dataclass with the values of a section that `keys_from` gave its keys, and `more`."""
    names = {each.name for each in fields(options)} - more.keys()  # type: ignore[arg-type]
    return options(**{name: getattr(section, name) for name in names}, **more)
