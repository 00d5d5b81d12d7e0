"""`bayrace evaluate`: errors of a potential on labelled files, beside the σ it predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from bayrace.cli.common import (
    Debug,
    Device,
    EnergyKey,
    ForcesKey,
    ModelFile,
    StressKey,
    console,
    friendly,
)
from bayrace.process import settle

if TYPE_CHECKING:
    from bayrace.data.read import LabelKeys
    from bayrace.potential import Potential
    from bayrace.report.evaluation import Evaluation


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(friendly(evaluate))


def evaluate(
    model: ModelFile,
    files: Annotated[list[str], typer.Argument(help="Labelled files; globs, file.xyz@:100.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the numbers (eV, Å) here.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also draw parity and σ figures into this folder.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Edges (neighbour pairs) per batch.")] = 20_000,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    stress_key: StressKey = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Compare a potential with labelled structures.

    \b
    Examples:
      bayrace evaluate model.bayrace test.xyz
      bayrace evaluate model.bayrace test_300K.xyz test_1200K.xyz --json errors.json
      bayrace evaluate model.bayrace test.xyz --energy-key REF_energy --forces-key REF_forces
    """
    del debug
    from bayrace.cli.tables import evaluation_table
    from bayrace.potential import Potential

    settle()
    potential = Potential.load(model, device=device)
    keys = label_keys(potential, energy=energy_key, forces=forces_key, stress=stress_key)
    evaluations = []
    names = [Path(file).name for file in files]
    for file, name in zip(files, names, strict=True):
        unique = name if names.count(name) == 1 else file
        evaluations.append(evaluate_file(potential, file, keys, name=unique, batch=batch))
        console().print(evaluation_table(evaluations[-1]))
    if json_file is not None:
        write_json(json_file, model, evaluations)
    if figures is not None:
        draw(figures, evaluations)


def label_keys(
    potential: Potential,
    *,
    energy: str | None = None,
    forces: str | None = None,
    stress: str | None = None,
) -> LabelKeys:
    """Keys given here, else those of the training data."""
    from bayrace.data.read import LabelKeys

    trained: dict[str, Any] = potential.config.get("data", {})
    return LabelKeys(
        energy=energy or trained.get("energy_key"),
        forces=forces or trained.get("forces_key"),
        stress=stress or trained.get("stress_key"),
        virial=trained.get("virial_key"),
        config_type=trained.get("config_type_key"),
    )


def evaluate_file(
    potential: Potential, file: str, keys: LabelKeys, *, name: str, batch: int
) -> Evaluation:
    """Evaluate one file with a progress bar."""
    from bayrace.data.read import DataError, read_frames, split_isolated
    from bayrace.report.evaluation import evaluate as compare

    frames, _ = split_isolated(read_frames(file, keys=keys, config_weights={}))
    if all(frame.energy is None and frame.forces is None for frame in frames):
        raise DataError(
            f"{file}: no frame has an energy or forces to compare with; name their keys with "
            "--energy-key and --forces-key, or use bayrace predict"
        )
    with Progress(console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=len(frames))
        return compare(
            potential,
            frames,
            name=name,
            edge_budget=batch,
            progress=lambda done: progress.update(task, completed=done),
        )


def write_json(path: Path, model: Path, evaluations: list[Evaluation]) -> None:
    """Write the numbers, in eV and Å."""
    content = {"model": str(model), "sets": {each.name: each.to_json() for each in evaluations}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    console().print(f"numbers: {path}")


def draw(folder: Path, evaluations: list[Evaluation]) -> None:
    """Write the figures as PNG files."""
    from bayrace.report import figures

    drawings = {
        "parity.png": figures.parity(evaluations),
        "error-against-sigma.png": figures.error_against_spread(evaluations),
        "sigma.png": figures.spread_histograms(evaluations),
    }
    for name, figure in drawings.items():
        console().print(f"figure: {figures.save(figure, folder / name)}")
