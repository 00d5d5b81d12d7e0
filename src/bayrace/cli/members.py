"""`bayrace train --members`: an ensemble, with a line for each member while it is trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bayrace.cli.common import FAILED, INTERRUPTED
from bayrace.cli.describe import describe
from bayrace.cli.progress import HEARTBEAT
from bayrace.cli.tables import evaluation_table
from bayrace.config import Config, format_duration
from bayrace.core.target import ENERGY, Target
from bayrace.system.process import tune_process
from bayrace.system.signals import stop_on_signals
from bayrace.workflow import ensemble
from bayrace.workflow import train as run
from bayrace.workflow.ensemble import EnsembleResult
from bayrace.workflow.folder import MODEL
from bayrace.workflow.member import MemberProgress, SideBySide
from bayrace.workflow.workers import place_members

Observer = Callable[[Sequence[MemberProgress]], None]
_STYLES = {"running": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow"}


def run_members(
    config: Config,
    out: Console,
    *,
    members: int,
    how: SideBySide,
    resume: bool,
    overwrite: bool,
    strict: bool = False,
) -> None:
    """Train with a display, print what came of it, and exit with 2 if a member failed.

    `how` says where; who watches and who may end it is ours.
    """
    tune_process()
    ensemble.check_folder(config, members=members, resume=resume, overwrite=overwrite)
    placement = place_members(config, how, members=members)
    prepared = run.prepare(config, strict=strict)
    describe(config, prepared, out)
    threads = "" if placement.threads is None else f", threads of each: {placement.threads}"
    where = f"on {how.scheduler}" if how.scheduler else f"{len(placement.slots)} at a time"
    out.print(f"       {members} members, {where}{threads}", markup=False)
    with stop_on_signals() as stop, members_display(out, config.target.build()) as observer:
        result = ensemble.train_members(
            config,
            members=members,
            how=replace(how, observer=observer, stop=stop),
            prepared=prepared,
            resume=resume,
            overwrite=overwrite,
        )
    conclude(result, out)


def conclude(result: EnsembleResult, out: Console) -> None:
    """Print errors, tables and what to do next; exit unless every member is there."""
    for member in result.failed:
        failed = f"[bold red]member {member.index} failed:[/] {escape(member.error)}"
        out.print(failed, markup=True)
    again = f"bayrace train {result.folder} --resume"
    if result.interrupted:
        out.print(f"stopped and saved; continue with: {again}")
        raise typer.Exit(INTERRUPTED)
    for evaluation in result.evaluations:
        out.print(evaluation_table(evaluation))
    finished = len(result.members) - len(result.failed)
    place = result.folder / MODEL
    out.print(f"potential: {place} ({finished} of {len(result.members)} members)")
    if result.failed:
        out.print(f"train the missing ones again with: {again}")
        raise typer.Exit(FAILED)


@contextmanager
def members_display(console: Console, target: Target = ENERGY) -> Iterator[Observer]:
    """Yield an observer of all members: a live table on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield MemberLines(console, target)
        return
    panel = MemberTable(target)
    # twice a second: drawing takes its time from the members
    with Live(console=console, get_renderable=panel.render, refresh_per_second=2):
        yield panel


class MemberTable:
    """A row for each member."""

    def __init__(self, target: Target = ENERGY) -> None:
        self._members: Sequence[MemberProgress] = ()
        own = f"{target.name} {target.shown_unit}"
        self._columns = ("member", "state", "epoch", own, "forces meV/Å", "elapsed", "eta")

    def __call__(self, members: Sequence[MemberProgress]) -> None:
        """Hear of all members."""
        self._members = members

    def render(self) -> Table:
        """What is on the screen now."""
        table = Table(*self._columns, box=None, pad_edge=False)
        for column in table.columns[2:]:
            column.justify = "right"
        for member in self._members:
            state = Text(member.state, style=_STYLES.get(member.state, "dim"))
            table.add_row(str(member.index), state, *_numbers(member))
        return table


class MemberLines:
    """A line when the state of a member changes, and every half minute for those that run."""

    def __init__(
        self,
        console: Console,
        target: Target = ENERGY,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._target, self._clock = console, target, clock
        self._printed = clock()
        self._states: dict[int, str] = {}

    def __call__(self, members: Sequence[MemberProgress]) -> None:
        """Hear of all members."""
        beat = self._clock() - self._printed >= HEARTBEAT
        if beat:
            self._printed = self._clock()
        for member in members:
            changed = self._states.get(member.index, "waiting") != member.state
            if changed or (beat and member.state == "running"):
                self._console.print(_line(member, self._target), markup=False)
            self._states[member.index] = member.state


def _line(member: MemberProgress, target: Target) -> str:
    epoch, energy, forces, elapsed, eta = _numbers(member)
    text = f"member {member.index}  {member.state}  epoch {epoch}"
    if member.epoch:
        text += f"  MAE {target.name} {energy} {target.shown_unit}"
        text += f", forces {forces} meV/Å" if target.is_energy else ""
        text += f"  elapsed {elapsed}"
        text += f"  eta {eta}" if member.state == "running" else ""
    return text


def _digits(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _numbers(member: MemberProgress) -> tuple[str, str, str, str, str]:
    """Epoch, validation errors, elapsed time and eta as text."""
    errors = [member.metrics.get(name) for name in ("energy_mae", "forces_mae")]
    energy, forces = ("–" if value is None else _digits(value) for value in errors)
    running = member.state == "running" and member.eta is not None
    return (
        f"{member.epoch}/{member.max_epochs}",
        energy,
        forces,
        format_duration(member.elapsed) if member.epoch else "–",
        format_duration(member.eta or 0.0) if running else "–",
    )
