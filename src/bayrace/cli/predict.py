"""`bayrace predict`: energies, forces and stress with their uncertainties, as extended XYZ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from bayrace.cli.cluster import Processes, Scheduler, loaded
from bayrace.cli.common import (
    Debug,
    Device,
    EdgeBudget,
    ModelFile,
    Overwrite,
    console,
    friendly,
    progress_bar,
    refuse_existing,
)
from bayrace.system.process import tune_process


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict")(friendly(predict))


def predict(
    model: ModelFile,
    files: Annotated[list[str], typer.Argument(help="Structures; globs, file.xyz@:100.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Extended XYZ file to write.")],
    overwrite: Overwrite = False,
    edge_budget: EdgeBudget = 20_000,
    workers: Processes = 1,
    scheduler: Scheduler = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Predict structures; labels in the input are neither needed nor used.

    Writes energy, forces and stress; *_uncertainty, *_aleatoric and *_epistemic (standard
    deviations); forces_covariance (9 columns). Units are eV and Å. Of a potential that was trained
    on another property (target: gap): gap, gap_unit, gap_uncertainty and its two parts.

    \b
    Examples:
      bayrace predict model.bayrace structures.xyz -o predicted.xyz
      bayrace predict model.bayrace 'md/*.traj' -o predicted.xyz --device cuda
      bayrace predict model.bayrace pool.xyz -o predicted.xyz --scheduler tcp://10.0.0.1:8786
    """
    del debug
    from bayrace.deploy.extxyz import predict_files

    refuse_existing(output, files, overwrite=overwrite)
    tune_process()
    columns = (SpinnerColumn(), TextColumn("{task.completed} structures"), TimeElapsedColumn())
    with (
        loaded(model, device=device, workers=workers, scheduler=scheduler) as (potential, spread),
        progress_bar(*columns) as progress,
    ):
        task = progress.add_task("", total=None)
        count = predict_files(
            spread or potential,
            files,
            output,
            edge_budget=edge_budget,
            progress=lambda done: progress.update(task, completed=done),
        )
    console().print(f"{count} structures: {output}")
