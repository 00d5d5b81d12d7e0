"""`bayrace export`: a potential as a file of another ecosystem."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bayrace.cli.common import Debug, ModelFile, Overwrite, console, friendly, refuse_existing


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(friendly(export))


def export(
    model: ModelFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write, such as model.pt.")
    ],
    to: Annotated[
        Literal["metatomic"], typer.Option(help="metatomic: TorchScript, runs without bayrace.")
    ] = "metatomic",
    dtype: Annotated[
        Literal["float32", "float64"] | None,
        typer.Option(help="Precision of the model; default: that of the training."),
    ] = None,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Write a potential as a file that other programs load.

    Energies, forces and stress are those of the potential; where its posterior has members, so are
    energy_uncertainty (their spread, calibrated) and energy_ensemble.

    \b
    Example:
      bayrace export model.bayrace --to metatomic -o model.pt
    """
    del debug, to
    from bayrace.deploy import metatomic
    from bayrace.potential.potential import Potential

    refuse_existing(output, [str(model)], overwrite=overwrite)
    potential = Potential.load(model, device="cpu", dtype=dtype)
    names = metatomic.export(potential, output)
    console().print(f"{output}: {', '.join(names)}")
