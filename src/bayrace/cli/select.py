"""`bayrace select`: the structures of a pool that are worth labelling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bayrace.cli.cluster import Processes, Scheduler, loaded
from bayrace.cli.common import (
    Debug,
    Device,
    EdgeBudget,
    Overwrite,
    console,
    friendly,
    progress_bar,
    refuse_existing,
    warn,
)
from bayrace.cli.methods import Arguments, chosen, listing
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from bayrace.data.frame import Frame, LabelKeys
    from bayrace.potential.potential import Potential
    from bayrace.select.select import Selection


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("select", cls=listing("bayrace.select.acquire:ACQUISITIONS"))(friendly(select))


def select(
    files: Annotated[list[str], typer.Argument(help="Structures; globs, file.xyz@:100.")],
    model: Annotated[Path, typer.Option("--model", "-m", help="The potential that is to learn.")],
    budget: Annotated[int, typer.Option("--budget", "-n", min=1, help="Structures to choose.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Extended XYZ file to write.")
    ] = Path("chosen.xyz"),
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="How to choose; default: bald-ef; bald-energy for a potential that knows noise of "
            "energies alone; variance for one that knows none, such as one of `bayrace adopt`.",
        ),
    ] = None,
    argument: Arguments = None,
    seen: Annotated[
        list[str] | None,
        typer.Option(help="Structures with labels; default: the training files of the model."),
    ] = None,
    over_atoms: Annotated[
        Literal["mean", "max", "sum"],
        typer.Option(help="How the numbers of its atoms' forces become one of a structure."),
    ] = "mean",
    min_distance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Leave out what is closer than this to a known or chosen structure: Å for one "
            "composition, else standard deviations of features; 0: only the same again.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random choices.")] = 0,
    overwrite: Overwrite = False,
    edge_budget: EdgeBudget = 20_000,
    workers: Processes = 1,
    scheduler: Scheduler = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Choose structures to label; the pool may be larger than the memory, and have no labels.

    \b
    Ways to choose (--by):
      {methods}

    \b
    Examples:
      bayrace select pool.xyz --model model.bayrace --by bald-ef --budget 20 -o chosen.xyz
      bayrace select 'md/*.traj' -m model.bayrace --by diverse -n 50 -o chosen.xyz
      bayrace select pool.xyz -m model.bayrace -n 10 -o more.xyz --seen train.xyz --seen chosen.xyz
    """
    del debug
    from bayrace.cli.evaluate import label_keys
    from bayrace.data.read import DataError
    from bayrace.select.acquire import ACQUISITIONS
    from bayrace.select.files import PoolFiles, write_chosen
    from bayrace.select.scan import Scanning
    from bayrace.select.select import select as choose

    refuse_existing(output, [*files, *(seen or [])], overwrite=overwrite)
    tune_process()
    columns = (SpinnerColumn(), TextColumn("{task.completed} structures"), TimeElapsedColumn())
    with loaded(model, device=device, workers=workers, scheduler=scheduler) as (potential, spread):
        way = chosen(ACQUISITIONS, by or _usual(potential), argument)
        keys = label_keys(potential)
        pool = PoolFiles(tuple(files), keys)
        known = seen_frames(potential, seen, keys)
        with progress_bar(*columns) as progress:
            task = progress.add_task("", total=None)
            selection = choose(
                potential,
                pool,
                by=way,
                budget=budget,
                seen=known,
                seed=seed,
                min_distance=min_distance,
                scanning=Scanning(
                    over_atoms=over_atoms,
                    edges=edge_budget,
                    progress=lambda done: progress.update(task, completed=done),
                    cluster=spread,
                ),
            )
    if not len(selection.indices):
        raise DataError(nothing_left(selection))
    report(potential, selection, write_chosen(pool, selection, output), budget=budget)
    console().print(f"{len(selection.indices)} structures: {output}")


def nothing_left(selection: Selection) -> str:
    """Why no structure of a pool could be chosen, and what may help."""
    why = ", ".join(f"{reason}: {count}" for reason, count in selection.skipped.items())
    remedy = "give other structures"
    if selection.skipped.get("like a training structure"):
        remedy = "lower --min-distance (0 leaves out copies only), or give other structures"
    return f"none of the {selection.pool} structures can be chosen ({why}); {remedy}"


def _usual(potential: Potential) -> str:
    """BALD weighs ignorance against noise, which not every potential knows."""
    from bayrace.core.protocols import Noisy
    from bayrace.models.noise import noise_spec_of

    predicted = noise_spec_of(potential.model).kind
    if isinstance(potential.posterior, Noisy) or predicted == "joint":
        return "bald-ef" if potential.target.is_energy else "bald-energy"
    return "bald-energy" if predicted == "energy" else "variance"


def seen_frames(potential: Potential, files: list[str] | None, keys: LabelKeys) -> list[Frame]:
    """Frames of the files that were named, else those of the training, where they can be found."""
    from bayrace.data.read import read_frames, split_isolated
    from bayrace.workflow.tune import training_frames

    if files:
        frames = read_frames(files, keys=keys, config_weights={}, require_labels=False)
        return split_isolated(frames)[0]
    try:
        train, valid = training_frames(potential)
    except (ValueError, OSError) as error:
        warn(
            f"the training data cannot be read again ({error}), so structures like them may be "
            "chosen; name them with --seen"
        )
        return []
    return [*train, *valid]


def report(potential: Potential, selection: Selection, frames: list[Frame], *, budget: int) -> None:
    """Print what was chosen and why, what was left out, and what has to follow."""
    from bayrace.calibrate.seen import overlap

    out = console()
    out.print(selection_table(selection, frames))
    for reason, count in selection.skipped.items():
        out.print(f"left out, {reason}: {count}")
    if len(frames) < budget:
        few = f"only {len(frames)} of {budget}: no more are left in the pool"
        out.print(few, style="yellow")
    tested = overlap(potential.frames, frames).get("test", 0)
    if tested:
        out.print(
            f"{tested} of them belong to the test set of this potential: leave them out of the "
            "next test",
            style="yellow",
        )


def selection_table(selection: Selection, frames: list[Frame]) -> Table:
    """One row for each choice."""
    unit = {"distances": "nearest, Å", "features": "nearest, σ"}.get(
        selection.descriptor, "nearest"
    )
    columns = ("rank", "file, frame", "type", "chosen by", "score", "place in pool", unit)
    title = f"{len(frames)} of {selection.pool} structures, by {selection.by}"
    table = Table(*columns, title=Text(title), title_justify="left")
    for column in (table.columns[0], *table.columns[4:]):
        column.justify = "right"
    for rank, frame in enumerate(frames):
        distance, place = float(selection.distances[rank]), int(selection.ranks[rank])
        table.add_row(
            str(rank + 1),
            Text(f"{Path(frame.source).name}, {frame.index}"),
            Text(frame.config_type),
            selection.criteria[rank],
            f"{selection.scores[rank]:.4g}",
            str(place) if place else "–",
            f"{distance:.3g}" if distance < float("inf") else "–",
        )
    return table
