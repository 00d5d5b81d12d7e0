"""`bayrace template`: a commented configuration to start from."""

from __future__ import annotations

from typing import Annotated

import typer

from bayrace.cli.common import Debug, friendly


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("template")(friendly(template))


def template(
    preset: Annotated[
        str, typer.Option(help="tiny, small, medium, qm9, psb3, rmd17, 3bpa or obn25.")
    ] = "small",
    debug: Debug = False,
) -> None:
    """Print a commented configuration with every key and its default.

    \b
    Examples:
      bayrace template > config.yaml
      bayrace template --preset 3bpa > config.yaml
    """
    del debug
    from bayrace.config import template as written

    typer.echo(written(preset), nl=False)
