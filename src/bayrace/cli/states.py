"""`bayrace states`: predict and judge all electronic states of structures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayrace.cli.common import Debug, Device, Overwrite, console, friendly, refuse_existing
from bayrace.cli.rules import Diabatic, StateModels


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("states")(friendly(states))


def states(
    models: StateModels,
    data: Annotated[str, typer.Option(help="Structures of one molecule: extended XYZ.")],
    diabatic: Diabatic = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Extended XYZ file of predictions.")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Predict every electronic state, and print errors where the file has labels.

    Labels are energy_0, forces_0, energy_1, forces_1 (eV, eV/Å) and coupling_01 (1/Å). Errors are
    MAE, RMSE and R² of values and gradients in kcal/mol; couplings are compared up to a sign. The
    output has the same names, and *_uncertainty (standard deviations).

    \b
    Examples:
      bayrace states mean.bayrace gap.bayrace --data test.xyz
      bayrace states pps.bayrace oss.bayrace delta2.bayrace --diabatic --data test.xyz -o all.xyz
    """
    del debug
    from rich.table import Table

    from bayrace.evaluate.states import state_errors
    from bayrace.potential.states import States
    from bayrace.simulate.hopping.labelled import read_states, write_states

    if output is not None:
        refuse_existing(output, [data], overwrite=overwrite)
    loaded = States.load(models, diabatic=diabatic, device=device)
    frames, energies, forces, coupling = read_states(data, loaded.count)
    told = loaded.predict(frames)
    out = console()
    if energies is not None and forces is not None:
        table = Table("", "unit", "MAE", "RMSE", "R²")
        for row in state_errors(told, energies, forces, coupling):
            numbers = (f"{row.mae:.3g}", f"{row.rmse:.3g}", f"{row.r2:.5f}")
            table.add_row(row.name, row.unit, *numbers)
        out.print(table)
    if output is not None:
        write_states(output, frames, told)
    where = "" if output is None else f": {output}"
    out.print(f"{len(frames)} structures{where}")
