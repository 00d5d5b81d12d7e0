"""`bayrace replay`: ways to choose structures, compared on pools whose labels are known."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bayrace.cli.common import INTERRUPTED, Debug, console, friendly, plural, refuse_missing
from bayrace.cli.train import OldOverride, Override
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from bayrace.config.active import ReplayConfig
    from bayrace.data.frame import Frame
    from bayrace.potential.potential import Potential
    from bayrace.workflow.replay import Plan
    from bayrace.workflow.replay_results import Cell, CellResult, SeedStatistics

CELLS, RESULTS = "cells", "results.json"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(friendly(replay))


def replay(
    source: Annotated[
        Path, typer.Argument(help="Configuration of the replay, a YAML file; see the example.")
    ],
    override: Override = None,
    old: OldOverride = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Forget the results in the output folder.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Replay active learning on labelled pools: select, train on, test; print the tables.

    Every cell of the table is a file, so a run that was interrupted goes on when started again, and
    seeds, budgets and acquisitions can be added later.

    \b
    Example, replay.yaml:
      model: runs/ensemble/model.bayrace
      pools: {600K: pool_600K.xyz, 1200K: pool_1200K.xyz}
      acquisitions: \\[random, bald-ef, diverse]
      budgets: [5, 10, 20]         of each pool
      seeds: [0, 1, 2]
      holdout: 0.333               of each pool is its test set
      tune: {epochs: 10, lr: 0.003}

    \b
      bayrace replay replay.yaml
      bayrace replay replay.yaml -s tune.epochs=20 -s output=runs/replay-20
    """
    del debug
    from bayrace.potential.potential import Potential
    from bayrace.system.signals import stop_on_signals
    from bayrace.workflow.replay import replay as run
    from bayrace.workflow.tune import training_frames

    config = read_config(source, [*(override or []), *(old or [])])
    tune_process()
    out = console()
    potential = Potential.load(config.model)
    train, valid = training_frames(potential)
    plan = make_plan(config, potential, train)
    folder = Path(config.output)
    if overwrite:
        shutil.rmtree(folder / CELLS, ignore_errors=True)
    describe(config, plan, potential, out)
    with stop_on_signals() as stop:
        results = run(
            potential,
            plan,
            tune=tuner(config, train, valid, stop),
            folder=folder / CELLS,
            identity=identity(config, plan),
            observer=progress(plan, folder, out, keep=config.keep),
            stop=stop,
        )
    conclude(config, results, out)
    if len(results) < len(plan.cells()):
        out.print(f"stopped and saved; continue with: bayrace replay {source} ...")
        raise typer.Exit(INTERRUPTED)


def read_config(source: Path, overrides: list[str]) -> ReplayConfig:
    """The configuration of a replay, whose folder is named after the file by default."""
    from bayrace.config.active import ReplayConfig
    from bayrace.config.load import make_section, read_yaml

    refuse_missing(source, "replay")
    raw = {"output": f"runs/{source.stem}"} | read_yaml(source)
    return make_section(ReplayConfig, raw, overrides, source=str(source))


def make_plan(config: ReplayConfig, potential: Potential, train: Sequence[Frame]) -> Plan:
    """What is compared, with the frames of all files."""
    from bayrace.cli.evaluate import label_keys
    from bayrace.data.read import read_frames, split_isolated
    from bayrace.workflow.replay import Plan

    keys = label_keys(potential)

    def read(paths: Sequence[str]) -> list[Frame]:
        return split_isolated(read_frames(list(paths), keys=keys, config_weights={}))[0]

    return Plan(
        acquisitions=config.acquisitions,
        budgets=config.budgets,
        seeds=config.seeds,
        pools={name: read(paths) for name, paths in config.pools.items()},
        tests={name: read(paths) for name, paths in config.tests.items()},
        train=train,
        holdout=config.holdout,
        over_atoms=config.select.over_atoms,
        min_distance=config.select.min_distance,
        ways={name: config.select.acquisition(name) for name in config.acquisitions},
    )


def tuner(
    config: ReplayConfig, train: Sequence[Frame], valid: Sequence[Frame], stop: Callable[[], bool]
) -> Callable[[Cell, Sequence[Frame]], Potential | None]:
    """Trains members in the folder of a cell."""
    from bayrace.workflow.member import SideBySide
    from bayrace.workflow.tune import fine_tune

    def tune(cell: Cell, picked: Sequence[Frame]) -> Potential | None:
        return fine_tune(
            config.model,
            [*train, *picked],
            valid,
            tune=config.tune,
            folder=work_folder(Path(config.output), cell),
            seed=1000 * (cell.seed + 1),  # members add their number
            how=SideBySide(config.workers, config.pin, stop=stop),
        )

    return tune


def work_folder(folder: Path, cell: Cell) -> Path:
    """Where the members of a cell are trained."""
    return folder / "work" / cell.name


def identity(config: ReplayConfig, plan: Plan) -> str:
    """A hash of all that a cell depends on, besides its own acquisition, budget and seed."""
    from bayrace.config import plain_values_of
    from bayrace.config.renamed import old_names
    from bayrace.data.split import fingerprint

    content = {
        "model": hashlib.sha256(Path(config.model).read_bytes()).hexdigest(),
        "pools": {name: fingerprint(frames) for name, frames in plan.pools.items()},
        "tests": {name: fingerprint(frames) for name, frames in plan.tests.items()},
        "holdout": config.holdout,
        **old_names({"select": plain_values_of(config.select)}),
        "tune": plain_values_of(config.tune),
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def describe(config: ReplayConfig, plan: Plan, potential: Potential, out: Console) -> None:
    """Say what is about to happen."""
    pools = ", ".join(f"{name} {len(frames)}" for name, frames in plan.pools.items())
    out.print(f"pools  {pools} structures, {config.holdout:.3g} of each for the test")
    tune = config.tune
    how = "from their checkpoints" if tune.start == "checkpoint" else "from scratch"
    out.print(
        f"train  {plural(potential.posterior.samples, 'member')} {how}, {tune.epochs} epochs on "
        f"{len(plan.train)} + new structures, learning rate {tune.lr:g}"
    )
    out.print(f"run    {len(plan.cells())} cells in {config.output}")


def progress(
    plan: Plan, folder: Path, out: Console, *, keep: bool
) -> Callable[[Cell, CellResult | None, bool], None]:
    """A line for each finished cell; its weights are removed unless they are wanted."""
    total, done = len(plan.cells()), 0

    def observer(cell: Cell, result: CellResult | None, known: bool) -> None:
        nonlocal done
        if result is None:
            return
        done += 1
        if not keep:
            shutil.rmtree(work_folder(folder, cell), ignore_errors=True)
        forces = [
            f"{name} {1000 * errors['forces']['rmse']:.1f}"
            for name, errors in result.errors.items()
            if "forces" in errors
        ]
        how = "found" if known else f"{result.seconds:.0f} s"
        text = f"{done}/{total}  {cell.name}  ({how})  forces RMSE, meV/Å: {', '.join(forces)}"
        out.print(text)

    return observer


def conclude(config: ReplayConfig, results: Sequence[CellResult], out: Console) -> None:
    """Print the tables and write all numbers."""
    from bayrace.cli.replay_tables import tables
    from bayrace.config import plain_values_of
    from bayrace.train.checkpoint import write_atomically
    from bayrace.workflow.replay_results import QUANTITIES, relative, summary

    if not results:
        return
    for table in tables(results):
        out.print(table)
    content: dict[str, Any] = {"config": plain_values_of(config)}
    for name, numbers in (("rmse", summary), ("relative_to_random", relative)):
        content[name] = {each: _json(numbers(results, each)) for each in QUANTITIES}
    content["cells"] = [result.to_json() for result in results]
    path = Path(config.output) / RESULTS
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1).encode())
    out.print(f"numbers: {path}")


def _json(found: dict[str, dict[tuple[str, int], SeedStatistics]]) -> dict[str, Any]:
    return {
        name: {f"{row} +{budget}": vars(value) for (row, budget), value in cells.items()}
        for name, cells in found.items()
    }
