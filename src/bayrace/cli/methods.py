"""Methods on the command line: listed in a command's help, and made with their options."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

if TYPE_CHECKING:
    from bayrace.core.registry import Registry

Arguments = Annotated[
    list[str] | None,
    typer.Option("--argument", "-a", help="Option of the method, as key=value; repeatable."),
]


def listing(place: str, *, offered: Callable[[Any], bool] = bool) -> type[TyperCommand]:
    """A command whose help lists the methods of a registry, "module:NAME", for {methods}.

    Those that are `offered`. Files of methods are imported for that, and only for that.
    """
    module, _, attribute = place.partition(":")

    class Listing(TyperCommand):
        def format_help(self, *formatting: Any) -> None:
            from bayrace.core.registry import summary

            registry: Registry[Any] = getattr(importlib.import_module(module), attribute)
            methods = {name: each for name, each in registry.all().items() if offered(each)}
            width = max(map(len, methods))
            lines = [
                f"  {name:<{width}}  {escape(summary(method).removesuffix('.'))}"
                for name, method in methods.items()
            ]
            self.help = (self.help or "").replace("  {methods}", "\n".join(lines))
            super().format_help(*formatting)

    return Listing


def chosen(registry: Registry[Any], name: str, given: list[str] | None) -> Any:
    """The method of a name, with options from the command line."""
    from bayrace.config.load import make_method

    return make_method(registry, name, parse_arguments(given or []))


def parse_arguments(given: list[str]) -> dict[str, Any]:
    """["charge=1", "method=GFN2-xTB"] as a mapping of YAML values."""
    from bayrace.config.load import yaml_value

    values = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ValueError(f"argument {text!r}: write key=value, such as method=GFN2-xTB")
        values[key.strip()] = yaml_value(value)
    return values
