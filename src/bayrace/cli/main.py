"""The command `bayrace`. Torch and ASE are imported inside commands, so that --help is quick."""

from __future__ import annotations

from typing import Annotated

import typer

import bayrace
from bayrace.cli import (
    active,
    adopt,
    calibrate,
    compare,
    convert,
    demo,
    evaluate,
    export,
    fit,
    hop,
    info,
    ipi,
    label,
    lammps,
    md,
    predict,
    properties,
    replay,
    report,
    schema,
    search,
    select,
    states,
    template,
    train,
    validate,
    watch,
)
from bayrace.cli.renamed import Commands

app = typer.Typer(
    name="bayrace",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _command in (
    demo,
    train,
    watch,
    validate,
    convert,
    adopt,
    fit,
    evaluate,
    calibrate,
    compare,
    report,
    predict,
    select,
    label,
    md,
    active,
    replay,
    search,
    properties,
    lammps,
    ipi,
    export,
    states,
    hop,
    info,
    template,
    schema,
):
    _command.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(bayrace.__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Interatomic potentials that know when they are wrong.

    Start with [bold]bayrace demo[/bold], or with your data: [bold]bayrace train data.xyz[/bold].
    """
    del version


if __name__ == "__main__":
    app()
