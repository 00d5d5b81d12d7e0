"""`bayrace export`: a potential as a file of another ecosystem."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bayrace.cli.common import Debug, ModelFile, Overwrite, console, friendly, refuse_existing

if TYPE_CHECKING:
    from bayrace.data.frame import Frame


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(friendly(export))


def export(
    model: ModelFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write, such as model.pt.")
    ],
    to: Annotated[
        Literal["metatomic", "mliap", "torch-export"],
        typer.Option(
            help="metatomic: TorchScript, runs without bayrace; mliap: for LAMMPS' mliap unified, "
            "needs bayrace; torch-export: a graph for one composition."
        ),
    ] = "metatomic",
    structure: Annotated[
        Path | None,
        typer.Option(help="With --to torch-export: a structure of the atoms that the file is for."),
    ] = None,
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
      bayrace export model.bayrace --to torch-export --structure start.xyz -o model.pt2
    """
    del debug
    from bayrace.potential.potential import Potential

    refuse_existing(output, [str(model)], overwrite=overwrite)
    potential = Potential.load(model, device="cpu", dtype=dtype)
    if to == "metatomic":
        from bayrace.deploy import metatomic

        names = metatomic.export(potential, output)
    elif to == "mliap":
        from bayrace.deploy import mliap

        names = mliap.export(potential, output)
    else:
        from bayrace.deploy import torch_export

        names = torch_export.export(potential, first_structure(structure), output)
    console().print(f"{output}: outputs {', '.join(names)}")


def first_structure(file: Path | None) -> Frame:
    """The first frame of a file that had to be named."""
    from bayrace.data.check import check_frame
    from bayrace.data.read import frame_from_atoms, iterate_atoms

    if file is None:
        raise ValueError("--to torch-export: name a file with the atoms it is for by --structure")
    source, index, atoms = next(iter(iterate_atoms(str(file))))
    frame = frame_from_atoms(atoms, keys=None, source=source, index=index)
    check_frame(frame)
    return frame
