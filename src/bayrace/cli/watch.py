"""`bayrace watch`: a training or a loop that runs elsewhere, seen through its folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bayrace.cli.common import Debug, console, friendly

if TYPE_CHECKING:
    from bayrace.workflow.look import Look, Training

_POLL = 0.5  # s between two looks
_SHOWN = 12  # trainings, the newest
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24  # characters of a curve


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch")(friendly(watch))


def watch(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a training, an ensemble, a search or a loop.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Show what there is now, and end.")] = False,
    debug: Debug = False,
) -> None:
    """Watch a training or a loop while it runs, from another terminal.

    Reads its folder and changes nothing. Ends when the run does. On a terminal it draws a table
    with the curve of validation errors; elsewhere it prints a line for every epoch.

    \b
    Examples:
      bayrace watch runs/data
      bayrace watch runs/loop --once
    """
    del debug  # the decorator reads it
    from bayrace.workflow.look import look

    out = console()
    now = look(folder)
    if once or not now.running:
        out.print(drawn(now))
        return
    if not out.is_terminal:
        _follow(out, folder)
        return
    with Live(drawn(now), console=out, refresh_per_second=4) as live:
        while now.running:
            time.sleep(_POLL)
            now = look(folder)
            live.update(drawn(now))


def _follow(out: Console, folder: Path) -> None:
    """A line for every epoch and for every step of a loop, as they end."""
    from bayrace.workflow.look import look

    told: set[tuple[str, int]] = set()
    running = True
    while running:
        now = look(folder)
        for number, step, seconds in now.steps:
            if (step, number) not in told:
                told.add((step, number))
                out.print(f"round {number}: {step}, {seconds:.0f} s", markup=False)
        for each in now.trainings:
            if (each.name, each.epoch) not in told:
                told.add((each.name, each.epoch))
                out.print("  ".join(_cells(each)), markup=False)
        running = now.running
        time.sleep(_POLL if running else 0.0)
    out.print("ended")


def drawn(now: Look) -> Group:
    """The whole picture."""
    table = Table(box=None, pad_edge=False)
    for title in ("run", "epoch", "step", "loss", "valid MAE", "lr", "elapsed", "eta", "errors"):
        table.add_column(title, no_wrap=True)
    for each in now.trainings[-_SHOWN:]:
        style = "cyan" if each.running else ""
        table.add_row(*(Text(cell) for cell in _cells(each)), curve(each.errors), style=style)
    parts: list[Table | Text] = []
    if now.steps:
        number, step, seconds = now.steps[-1]
        parts.append(Text(f"round {number}: {step} is done ({seconds:.0f} s)"))
    hidden = len(now.trainings) - _SHOWN
    if hidden > 0:
        parts.append(Text(f"{hidden} earlier trainings are not shown"))
    empty = Text("no epoch has ended yet")
    parts.append(table if now.trainings else empty)
    parts.append(Text("running" if now.running else "nobody works in it now"))
    return Group(*parts)


def _cells(each: Training) -> list[str]:
    """Texts of a row, but for its curve."""
    from bayrace.config import format_duration

    limit = "" if each.max_epochs is None else f"/{each.max_epochs}"
    energy = "meV" if "forces_mae" in each.metrics else ""  # else that of another property
    shown = (("forces_mae", "meV/Å"), ("energy_mae", energy))
    errors = [f"{each.metrics[k]:.4g} {u}".strip() for k, u in shown if k in each.metrics]
    return [
        each.name,
        f"{each.epoch}{limit}",
        f"{each.step}",
        "" if each.loss is None else f"{each.loss:.4g}",
        ", ".join(errors),
        f"{each.learning_rate:.2g}",
        format_duration(each.elapsed),
        "" if each.eta is None or not each.running else format_duration(each.eta),
    ]


def curve(values: tuple[float, ...]) -> str:
    """Numbers as bars, from the smallest to the largest; long series are thinned."""
    if not values:
        return ""
    count = min(len(values), _WIDTH)
    chosen = [values[round(k * (len(values) - 1) / max(count - 1, 1))] for k in range(count)]
    low, high = min(chosen), max(chosen)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in chosen)
