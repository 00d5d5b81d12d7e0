"""Training as it happens: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from bayrace.config import format_duration
from bayrace.core.target import ENERGY, Target
from bayrace.train.loop import Event, StepEvent, ValidEvent

HEARTBEAT = 30.0  # seconds between plain lines while no validation ends


@contextmanager
def training_display(
    console: Console, target: Target = ENERGY
) -> Iterator[Callable[[Event], None]]:
    """Yield an observer for the training loop that shows what it hears."""
    if not console.is_terminal:
        yield PlainLines(console, target)
        return
    panel = LivePanel(target)
    with Live(console=console, get_renderable=panel.render, refresh_per_second=5):
        yield panel


class PlainLines:
    """A line per validation, and one every half minute in between."""

    def __init__(
        self,
        console: Console,
        target: Target = ENERGY,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._target, self._clock = console, target, clock
        self._printed = clock()
        self._step: StepEvent | None = None

    def __call__(self, event: Event) -> None:
        """Hear of a step or a validation."""
        if isinstance(event, StepEvent):
            self._step = event
            if self._clock() - self._printed >= HEARTBEAT:
                self._print(_step_line(event))
            return
        eta = "" if self._step is None else f"  eta {format_duration(self._step.eta)}"
        line = _valid_line(event, self._target)
        self._print(f"{_place(event, self._step)}  {line}{eta}")

    def _print(self, line: str) -> None:
        self._printed = self._clock()
        self._console.print(line, markup=False)


class LivePanel:
    """A bar for the epoch and two lines of numbers, redrawn in place."""

    def __init__(self, target: Target = ENERGY) -> None:
        self._target = target
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("step {task.completed}/{task.total}  eta {task.fields[eta]}"),
            expand=True,
        )
        self._task = self._bar.add_task("", total=1, epoch="1", eta="…")
        self._train, self._valid = Text("train  …"), Text("valid  …")

    def __call__(self, event: Event) -> None:
        """Hear of a step or a validation."""
        if isinstance(event, ValidEvent):
            self._valid = Text(f"valid  {_valid_line(event, self._target)}")
            return
        self._bar.update(
            self._task,
            completed=event.batch,
            total=event.steps_per_epoch,
            epoch=f"{event.epoch}/{event.max_epochs}",
            eta=format_duration(event.eta),
        )
        self._train = Text(f"train  {_losses(event)}  lr {event.learning_rate:.2g}")

    def render(self) -> Group:
        """What is on the screen now."""
        return Group(self._bar, self._train, self._valid)


def _place(event: Event, step: StepEvent | None) -> str:
    limit = "" if step is None else f"/{step.max_epochs}"
    return f"epoch {event.epoch}{limit}  step {event.step}"


def mean_errors(metrics: Mapping[str, float], target: Target) -> Iterator[tuple[str, float, str]]:
    """Name, mean absolute error and unit of each quantity that a validation knows."""
    known = (("energy", target.name, target.shown_unit), ("forces", "forces", "meV/Å"))
    for key, name, unit in (*known, ("stress", "stress", "meV/Å³")):
        if f"{key}_mae" in metrics:
            yield name, metrics[f"{key}_mae"], unit


def _step_line(event: StepEvent) -> str:
    elapsed, eta = format_duration(event.elapsed), format_duration(event.eta)
    rate = f"lr {event.learning_rate:.2g}"
    return f"{_place(event, event)}  {_losses(event)}  {rate}  elapsed {elapsed}  eta {eta}"


def _losses(event: StepEvent) -> str:
    parts = ", ".join(f"{name} {value:.3g}" for name, value in event.parts.items())
    return f"loss {event.loss:.4g} ({parts})"


def _valid_line(event: ValidEvent, target: Target) -> str:
    metrics, digits = event.metrics, ".2f" if target.unit == "eV" else ".3g"
    errors = [
        f"{name} {value:{digits}} {unit}" for name, value, unit in mean_errors(metrics, target)
    ]
    best = " (best)" if event.improved else ""
    loss = f"loss {event.train.get('loss', float('nan')):.4g} valid {metrics['loss']:.4g}"
    rate = f"lr {event.learning_rate:.2g}  elapsed {format_duration(event.elapsed)}"
    return f"{loss}  MAE {', '.join(errors)}{best}  {rate}"
