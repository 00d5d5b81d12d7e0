"""`bayrace schema`: the configuration as a JSON schema, for editors."""

from __future__ import annotations

import json

import typer

from bayrace.cli.common import Debug, friendly


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema")(friendly(schema))


def schema(debug: Debug = False) -> None:
    """Print the JSON schema of the configuration, for completion in an editor.

    \b
    Example:
      bayrace schema > bayrace.schema.json
      then put this in the first line of config.yaml:
      # yaml-language-server: $schema=bayrace.schema.json
    """
    del debug
    from bayrace.config import json_schema

    typer.echo(json.dumps(json_schema(), indent=1, ensure_ascii=False))
