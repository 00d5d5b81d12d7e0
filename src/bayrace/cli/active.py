"""`bayrace active`: explore, select, label, train further, test, and again until it is enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayrace.cli.common import INTERRUPTED, Debug, console, friendly, refuse_missing
from bayrace.cli.train import OldOverride, Override
from bayrace.system.process import tune_process
from bayrace.workflow.loop.observer import LoopObserver

if TYPE_CHECKING:
    from bayrace.config.loop import LoopConfig
    from bayrace.label.label import Progress
    from bayrace.report.round import Round, RunSummary
    from bayrace.workflow.loop.rounds import Ended
    from bayrace.workflow.loop.runs import RunRecord
    from bayrace.workflow.loop.steps import Step
    from bayrace.workflow.member import MemberProgress

PROBLEM = 1  # exit code of a loop that had to give up
_EVERY = 30.0  # s between signs of life within a step


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("active")(friendly(active))


def active(
    source: Annotated[
        Path, typer.Argument(help="Configuration of the loop, a YAML file; see the example.")
    ],
    override: Override = None,
    old: OldOverride = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Forget the loop in the folder, labels included.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Let a potential find out what it does not know, and learn it.

    Every round: dynamics from several structures at several temperatures, until it is uncertain;
    choose the structures worth a label; label them; train all members further; calibrate; test.
    After an interruption, however brutal, the same command goes on; no label is computed twice.

    \b
    Example, loop.yaml:
      data: {train: start.xyz, valid: 4}        or potential: model.bayrace
      test: {hot: hot.xyz}                      optional
      oracle: gfn2
      explore: {temperatures: [300, 600, 1000], structures: 4, steps: 2000}
      select: {by: bald-ef, budget: 10}
      train: {max_time: 30m}                    of the first training, each member
      tune: {epochs: 100}
      stop: {labels: 100, error: 0.05, rounds: 20}

    \b
      bayrace active loop.yaml
      bayrace active loop.yaml -s stop.labels=200      go on with a larger budget
      bayrace active loop.yaml -s select.by=random -s output=runs/random

    The folder holds loop.sqlite (all that was done, and all labels), report.html, rounds.json, the
    newest model.bayrace and a folder for each round.
    """
    del debug
    config = read_config(source, [*(override or []), *(old or [])])
    from bayrace.workflow.loop.rounds import run_loop

    tune_process()
    out = console()
    describe(config, out)
    try:
        with Lines(out) as lines:
            ended = run_loop(config, watch=lines, overwrite=overwrite)
    except KeyboardInterrupt:
        out.print(f"stopped and saved; continue with: bayrace active {source} ...")
        raise typer.Exit(INTERRUPTED) from None
    conclude(ended, config, out)
    if ended.problem:
        raise typer.Exit(PROBLEM)


def read_config(source: Path, overrides: list[str]) -> LoopConfig:
    """The configuration of a loop, whose folder is named after the file by default."""
    from bayrace.config.load import make_section, read_yaml
    from bayrace.config.loop import LoopConfig

    refuse_missing(source, "active")
    raw = {"output": f"runs/{source.stem}"} | read_yaml(source)
    if raw.get("data") is None:
        raw.pop("data", None)
    config = make_section(LoopConfig, raw, overrides, source=str(source))
    if config.potential is None:
        config.training(config.output)  # what only a whole training can refuse
    return config


def describe(config: LoopConfig, out: Console) -> None:
    """Say what is about to happen."""
    from bayrace.config.loop import dynamics_settings
    from bayrace.config.oracle import make_oracle

    explore, stop = config.explore, config.stop
    temperatures = ", ".join(f"{kelvin:g}" for kelvin in explore.temperatures)
    limits = {
        "labels": stop.labels,
        "rounds": stop.rounds,
        "force RMSE of eV/Å": stop.error,
    }
    until = ", ".join(f"{value:g} {name}" for name, value in limits.items() if value is not None)
    begin = config.potential or ", ".join(config.data.train if config.data else ())
    length = explore.steps * dynamics_settings(explore, seed=0).timestep / 1000
    out.print(f"start    {begin}")
    out.print(f"explore  {temperatures} K, up to {length:g} ps")
    out.print(f"select   {config.select.budget} a round by {config.select.by}")
    out.print(f"label    {make_oracle(config.oracle).method}")
    out.print(f"until    {until}")
    out.print(f"folder   {config.output}")


def conclude(ended: Ended, config: LoopConfig, out: Console) -> None:
    """Print the table of all rounds, why it ended, and where everything is."""
    out.print(rounds_table(ended.rounds))
    word, style = ("problem", "bold red") if ended.problem else ("ended", "")
    out.print(f"{word}: {ended.reason}", markup=False, style=style)
    out.print(f"potential: {ended.model}", markup=False)
    out.print(f"report: {Path(config.output) / 'report.html'}", markup=False)


def rounds_table(rounds: Sequence[Round]) -> Table:
    """One row for each round."""
    sets = list(rounds[-1].errors)
    heads = ("round", "labels", "failed", *sets, "newest", "σ at most", "runs ended")
    table = Table(*heads, title="forces: RMSE and σ in meV/Å", title_justify="left")
    for column in table.columns[:-1]:
        column.justify = "right"
    for each in rounds:
        errors = [_milli(each.errors[name]["forces_rmse"]) for name in sets]
        newest = _milli(each.newest["forces_rmse"] if each.newest else None)
        stds = [run.forces_std for run in each.runs if run.forces_std is not None]
        table.add_row(
            str(each.number),
            str(each.labels),
            str(each.failed) if each.number else "–",
            *errors,
            newest,
            _milli(max(stds, default=None)),
            endings(each.runs),
        )
    return table


def endings(runs: Sequence[RunSummary]) -> str:
    """How many runs ended in which way."""
    reasons = [run.reason for run in runs]
    kinds = dict.fromkeys(reasons)
    return ", ".join(f"{reasons.count(kind)} {kind}" for kind in kinds) or "–"


def _milli(value: float | None) -> str:
    return "–" if value is None else f"{1000 * value:.1f}"


class Lines(LoopObserver):
    """A line for each step, a table for each round, and signs of life in long steps.

    On a terminal those are a line that changes, elsewhere a new one now and then.
    """

    def __init__(self, out: Console) -> None:
        self._out, self._spoken, self._runs, self._new = out, time.monotonic(), 0, False
        self._status = out.status("")

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def begins(self, number: int, step: str) -> None:
        """Begin to count anew."""
        self._spoken, self._runs, self._new = time.monotonic(), 0, True
        if self._out.is_terminal:
            self._status.update(f"round {number}  {step}")
            self._status.start()

    def ends(self, number: int, result: Step, seconds: float | None) -> None:
        """Say what came of a step."""
        self._status.stop()
        how = "found" if seconds is None else f"{seconds:.1f} s"
        self._say(f"round {number}  {result.name:<8}  {said(result)}  ({how})")

    def members(self, members: Sequence[MemberProgress]) -> None:
        """Say how far training is."""
        done = sum(member.state == "finished" for member in members)
        busy = [f"{each.epoch}/{each.max_epochs}" for each in members if each.state == "running"]
        self._now_and_then(
            f"{done}/{len(members)} members, epochs {', '.join(busy)}{left(members)}"
        )

    def labels(self, progress: Progress) -> None:
        """Say how far labelling is."""
        self._now_and_then(f"{progress.done}/{progress.total} labels")

    def run(self, run: RunRecord) -> None:
        """Say how far exploration is."""
        del run
        self._runs += 1
        self._now_and_then(f"{self._runs} runs")

    def round(self, done: Round) -> None:
        """Show a round, unless it was shown before an interruption."""
        if self._new:
            self._out.print(rounds_table([done]))
            self._new = False

    def _now_and_then(self, text: str) -> None:
        if self._out.is_terminal:
            self._status.update(escape(text))
        elif time.monotonic() - self._spoken > _EVERY:
            self._spoken = time.monotonic()
            self._say(f"  {text}")

    def _say(self, text: str) -> None:
        self._out.print(text, markup=False)


def left(members: Sequence[MemberProgress]) -> str:
    """How long training will take still, by the members that have come furthest, in words."""
    from bayrace.config import format_duration

    running = [each for each in members if each.state == "running"]
    known = [each.eta for each in running if each.eta is not None]
    if not known or len(known) < len(running):
        return ""
    whole = max(each.elapsed + (each.eta or 0.0) for each in running)
    turns = -(-sum(each.state == "waiting" for each in members) // len(running))
    return f", about {format_duration(max(known) + turns * whole)} left"


def said(result: Step) -> str:
    """What came of a step, in a few words."""
    from bayrace.workflow.loop.steps import Chosen, Explored, Labelled, Scored, Trained

    match result:
        case Trained():
            return f"{result.train} training and {result.valid} validation structures"
        case Explored():
            return f"{len(result.runs)} runs: {endings(result.runs)}"
        case Chosen():
            lowered = result.min_distance
            near = "" if lowered is None else f", with the least distance lowered to {lowered:.2g}"
            return f"{len(result.chosen)} of {result.pool} structures{near}"
        case Labelled():
            lost = f", {result.failed} failed" if result.failed else ""
            counted = f"{len(result.uses) - result.failed} labels{lost}"
            if result.newest is None:
                return counted
            return f"{counted}; they were wrong by {_milli(result.newest['forces_rmse'])} meV/Å"
        case Scored():
            errors = [f"{name} {_milli(e['forces_rmse'])}" for name, e in result.errors.items()]
            return f"forces RMSE, meV/Å: {', '.join(errors)}" if errors else "no test set"
    return ""
