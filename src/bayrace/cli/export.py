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
        Literal["metatomic", "mliap"],
        typer.Option(
            help="metatomic: TorchScript, runs without bayrace; mliap: for LAMMPS' mliap unified, "
            "needs bayrace."
        ),
    ] = "metatomic",
    dtype: Annotated[
        Literal["float32", "float64"] | None,
        typer.Option(help="Precision of the model; default: that of the training."),
    ] = None,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Write a potential as a file that other programs load.

    Energies, forces and stress are those of the potential; where its posterior has members,
    metatomic also has energy_uncertainty (their spread, calibrated) and energy_ensemble.

    \b
    Examples:
      bayrace export model.bayrace --to metatomic -o model.pt
      bayrace export model.bayrace --to mliap -o model.pkl
    """
    del debug
    from bayrace.potential.potential import Potential

    refuse_existing(output, [str(model)], overwrite=overwrite)
    potential = Potential.load(model, device="cpu", dtype=dtype)
    if to == "metatomic":
        from bayrace.deploy import metatomic

        names = metatomic.export(potential, output)
    else:
        from bayrace.deploy import mliap

        names = mliap.export(potential, output)
    console().print(f"{output}: {', '.join(names)}")
