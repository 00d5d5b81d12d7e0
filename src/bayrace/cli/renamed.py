"""Options that had other names in 0.1: they still work, and a note says what replaced them."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

RENAMED = {
    "--batch": "--edge-budget",
    "--bound": "--max-force-error",
    "--over": "--over-atoms",
    "--apart": "--min-distance",
    "--look-every": "--uncertainty-every",
}
"""Of whatever command has the new option and not the old one."""


class Commands(TyperGroup):
    """The commands; old names of their options are replaced before they are parsed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command and its arguments, in new names."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is None:
            return name, command, rest
        known = {option for parameter in command.params for option in parameter.opts}
        return name, command, [_new(each, known) for each in rest]


def _new(argument: str, known: set[str]) -> str:
    old, equals, value = argument.partition("=")
    new = RENAMED.get(old)
    if new is None or old in known or new not in known:
        return argument
    typer.echo(f"note: {old} is called {new} now; the old name still works", err=True)
    return new + equals + value
