"""`bayrace compare`: several potentials on one known and one unknown set, in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bayrace.cli.common import (
    Debug,
    Device,
    EdgeBudget,
    EnergyKey,
    ForcesKey,
    StressKey,
    console,
    friendly,
    progress_bar,
)
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bayrace.data.read import Frame, LabelKeys
    from bayrace.evaluate.comparison import Contender
    from bayrace.potential.potential import Potential

QUALITY_OF_MODELS = (
    *("E RMSE\nknown", "F RMSE\nknown", "E RMSE\nunknown", "F RMSE\nunknown"),
    *("E CE\nknown", "F CE\nknown", "E CE\nunknown", "F CE\nunknown"),
)
WORTH_OF_MODELS = (
    *("AUROC\nE", "AUROC\nF", "epistemic\nE", "epistemic\nF", "novelty"),
    *("score", "time", "time,\nσ of E only", "memory"),
)
Score = Literal[
    "energy_total", "forces_mean_total", "energy_epistemic", "forces_mean_epistemic", "novelty"
]
SCORES: tuple[Score, ...] = get_args(Score)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(friendly(compare))


def compare(
    models: Annotated[
        list[Path], typer.Argument(help="Potentials; costs are told in those of the first.")
    ],
    known: Annotated[str, typer.Option("--id", help="Labelled structures of the known kind.")],
    ood: Annotated[
        str | None, typer.Option(help="Structures of an unknown kind, to be told from these.")
    ] = None,
    normalise: Annotated[
        bool,
        typer.Option(
            "--normalise", help="In the score, map calibration errors of all models onto 0 to 1."
        ),
    ] = False,
    score: Annotated[
        Score,
        typer.Option(
            help="What tells unknown structures in the score, by its AUROC: σ of energy or forces, "
            "total or epistemic, or the novelty of the structure."
        ),
    ] = "energy_total",
    timed: Annotated[
        int, typer.Option(min=1, help="Structures in the batch whose prediction is timed.")
    ] = 16,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each potential is timed, in turns.")
    ] = 30,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="JSON file to write all numbers to as well (eV, Å)."),
    ] = None,
    edge_budget: EdgeBudget = 20_000,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    stress_key: StressKey = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Compare potentials: errors, calibration, detection of the unknown, cost.

    Time and memory are relative to the first model. Score: 0.25·23.06·(E + F RMSE in eV, eV/Å)
    + 0.125·(CE of E + F) + 0.25·(1 - AUROC), errors on the known structures; less is better.

    \b
    Examples:
      bayrace compare point.bayrace ensemble.bayrace --id test_300K.xyz --ood test_1200K.xyz
      bayrace compare raw.bayrace calibrated.bayrace --id test.xyz --json comparison.json
    """
    del debug
    from bayrace.cli.evaluate import label_keys
    from bayrace.evaluate.comparison import to_json
    from bayrace.potential.potential import Potential
    from bayrace.train.checkpoint import write_atomically

    tune_process()
    potentials = {
        name: Potential.load(path, device=device)
        for name, path in zip(short_names(models), models, strict=True)
    }
    first = next(iter(potentials.values()))
    keys = label_keys(first, energy=energy_key, forces=forces_key, stress=stress_key)
    sets = read_set(potentials, known, keys), read_set(potentials, ood, keys) if ood else None
    contenders = run(potentials, *sets, timed=timed, rounds=rounds, edge_budget=edge_budget)
    out = console()
    for table in tables(contenders, normalise=normalise, score=score):
        out.print(table)
    if json_file is not None:
        content = {"id": known, "ood": ood, "models": to_json(contenders, score=score)}
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(json_file, json.dumps(content, indent=1).encode())
        out.print(f"numbers: {json_file}")


def short_names(paths: list[Path]) -> list[str]:
    """File names without their ending, or as much of the paths as tells them apart."""
    stems = [path.stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    full = [str(path) for path in paths]
    if len(set(full)) < len(full):
        twice = next(name for name in full if full.count(name) > 1)
        raise ValueError(f"{twice} is given twice; name each model once")
    near = [str(Path(path.parent.name) / path.stem) for path in paths]
    return near if _parents_differ(paths) else full


def read_set(potentials: dict[str, Potential], file: str, keys: LabelKeys) -> list[Frame]:
    """The frames of a file, with a warning for each potential that has seen some."""
    from bayrace.cli.evaluate import read_labelled, warn_if_seen

    frames = read_labelled([file], keys)
    for name, potential in potentials.items():
        warn_if_seen(potential, frames, f"{name}: {Path(file).name}")
    return frames


def run(
    potentials: dict[str, Potential],
    known: list[Frame],
    unknown: list[Frame] | None,
    *,
    timed: int,
    rounds: int,
    edge_budget: int,
) -> list[Contender]:
    """Compare with a display of what is being done."""
    from bayrace.evaluate.comparison import compare as judge

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with progress_bar(*columns) as progress:
        task = progress.add_task("", total=None)
        return judge(
            potentials,
            known,
            unknown,
            timed=timed,
            rounds=rounds,
            edge_budget=edge_budget,
            progress=lambda text: progress.update(task, description=text),
        )


def tables(contenders: Sequence[Contender], *, normalise: bool, score: Score) -> list[Table]:
    """The paper's table in two parts, one row per potential: errors, then detection and cost."""
    from bayrace.evaluate.comparison import unified

    first = contenders[0]
    sizes = f"known: {first.known.accuracy.frames} structures" + (
        "" if first.unknown is None else f", unknown: {first.unknown.accuracy.frames}"
    )
    target = first.known.target
    units = "meV and meV/Å" if target.is_energy else f"{target.shown_unit} ({target.name} as E)"
    how = "normalised over these models" if normalise else "as it is"
    scores = unified(contenders, normalise=normalise, score=score)
    return [
        _models(
            QUALITY_OF_MODELS,
            {each.name: _errors_row(each) for each in contenders},
            caption=f"{sizes}; RMSE in {units}; CE: calibration error, 0 to 0.332",
        ),
        _models(
            WORTH_OF_MODELS,
            {each.name: _worth_row(each, scores[each.name]) for each in contenders},
            caption="AUROC of total and of epistemic σ, and of novelty; "
            f"time, memory: relative to {first.name}\n"
            f"score: less is better, with the AUROC of {score} and CE {how}",
        ),
    ]


def _models(columns: Sequence[str], rows: Mapping[str, Iterable[str]], *, caption: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=Text(caption))
    table.add_column("model", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(Text(name), *map(Text, row))
    return table


def _errors_row(each: Contender) -> Iterator[str]:
    for unknown in (False, True):
        for quantity in ("energy", "forces"):
            rmse = each.rmse(quantity, unknown=unknown)
            factor = each.known.target.factor if quantity == "energy" else 1000
            yield "–" if rmse is None else _rmse(factor * rmse)
    for unknown in (False, True):
        for quantity in ("energy", "forces"):
            error = each.calibration_error(quantity, unknown=unknown)
            yield "–" if error is None else f"{error:.4f}"


def _worth_row(each: Contender, score: float | None) -> Iterator[str]:
    cost = each.cost
    yield from map(_shown, (*map(each.auroc, SCORES), score))
    yield from (f"{ratio:.2f}×" for ratio in (cost.time, cost.energy_time, cost.memory_ratio))


def _rmse(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _parents_differ(paths: list[Path]) -> bool:
    names = [(path.parent.name, path.stem) for path in paths]
    return len(set(names)) == len(names)
