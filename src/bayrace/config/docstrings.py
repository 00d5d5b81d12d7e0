"""Docstrings of attributes, which are the help of options."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


def described(options: T) -> T:
    """The dataclass with descriptions of its fields in their metadata, inherited ones too.

    There pydantic finds them.
    """
    for field in fields(options):
        if "description" not in field.metadata:
            text = attribute_docs(options).get(field.name, "")
            field.metadata = {**field.metadata, "description": text}  # type: ignore[assignment]
    return options


@cache
def attribute_docs(options: type[Any]) -> dict[str, str]:
    """The docstring below each attribute of a class and of those that it derives from."""
    found: dict[str, str] = {}
    for each in reversed(options.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(each))
        except (OSError, TypeError):  # made at run time
            continue
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for first, second in zip(body.body, body.body[1:], strict=False):
            named = isinstance(first, ast.AnnAssign) and isinstance(first.target, ast.Name)
            if named and isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant):
                found[first.target.id] = " ".join(str(second.value.value).split())  # type: ignore[attr-defined]
    return found
