"""`bayrace ipi`: the driver that i-PI asks for energies and forces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayrace.cli.common import Debug, Device, ModelFile, console, friendly
from bayrace.cli.rules import Action, GapLimit, MaxForceError, Probability, make_rule, read_one
from bayrace.system.process import tune_process

STOPPED = 3  # exit code where the rule ended the run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ipi")(friendly(ipi))


def ipi(
    model: ModelFile,
    structure: Annotated[str, typer.Argument(help="The structure i-PI starts from; file.xyz@0.")],
    unix: Annotated[
        str | None, typer.Option(help="Address of i-PI's ffsocket, with mode unix.")
    ] = None,
    host: Annotated[str, typer.Option(help="Host of i-PI, with mode inet.")] = "localhost",
    port: Annotated[int, typer.Option(help="Port of i-PI, with mode inet.")] = 31415,
    committee: Annotated[
        bool,
        typer.Option("--committee", help="Also send energies and forces of each member."),
    ] = False,
    stop_file: Annotated[
        Path,
        typer.Option(help="File made where the stop rule acts; EXIT in i-PI's folder ends i-PI."),
    ] = Path("EXIT"),
    max_force_error: MaxForceError = 0.5,
    probability: Probability = 0.05,
    action: Action = "stop",
    gap: GapLimit = "auto",
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Answer i-PI with energy, forces, virial and uncertainties, until it ends.

    i-PI finds energy_uncertainty, forces_uncertainty, energies_uncertainty, risk and, with
    --committee, committee_pot and committee_force in the extras. With <batch_size> in its ffsocket,
    the beads of a path integral are evaluated together. Exit code 3: the stop rule ended the run.

    \b
    Examples:
      i-pi input.xml &
      bayrace ipi model.bayrace start.xyz --unix water
      bayrace ipi model.bayrace start.xyz --host node7 --port 31415 --committee
    """
    del debug
    import numpy as np

    from bayrace.deploy.evaluator import Evaluator
    from bayrace.deploy.ipi import IpiEvaluator, connect, serve
    from bayrace.potential.potential import Potential

    tune_process()
    potential = Potential.load(model, device=device)
    atoms = read_one(structure, potential)
    rule = make_rule(
        potential,
        max_force_error=max_force_error,
        probability=probability,
        action=action,
        gap=gap,
    )
    answers = IpiEvaluator(
        Evaluator(potential, rule=rule),
        atoms.numbers.astype(np.int64),
        np.array(atoms.pbc),
        stop=stop_file,
        committee=committee,
    )
    with connect(unix=unix, host=host, port=port) as connection:
        serve(connection, answers)
    console().print(f"{answers.evaluations} structures answered")
    if answers.broken:
        console().print(f"the stop rule acted: {stop_file} asks i-PI to end")
        raise typer.Exit(STOPPED)
