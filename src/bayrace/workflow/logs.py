"""A training as others draw it: TensorBoard and Weights & Biases, on top of history.jsonl.

    log: [tensorboard]        # or wandb, or both; none by default

Both hear the loss of steps, at most once a second, and every validation. Names are those of
history.jsonl: train/loss, valid/forces_mae, learning_rate. A resumed run continues its curves.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from bayrace.config import Config, ConfigError, plain_values_of
from bayrace.train.callbacks import Callbacks
from bayrace.train.settings import Event, StepEvent
from bayrace.train.state import HISTORY, last_line

_PAUSE = 1.0  # s between two steps that are written
_ID = "wandb.id"  # of the run, in its folder


class Sink(Protocol):
    """Something that keeps numbers by step."""

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Keep these."""
        ...

    def close(self) -> None:
        """There will be no more."""
        ...


@contextmanager
def logged(config: Config, calls: Callbacks, *, resume: bool) -> Iterator[Callbacks]:
    """The callbacks, of which the observer also writes to what `log` names."""
    if not config.log:
        yield calls
        return
    folder = Path(config.output)
    with ExitStack() as stack:
        sinks = [_SINKS[name](config, folder, resume) for name in config.log]
        for sink in sinks:
            stack.callback(sink.close)
        writer = Writer(sinks)

        def observer(event: Event) -> None:
            writer(event)
            calls.observer(event)

        yield replace(calls, observer=observer)


def check_log(config: Config) -> None:
    """Refuse what is not installed, before a folder is made."""
    for name in config.log:
        _needs(name)


class Writer:
    """Hears of a training and tells sinks of it, not of every step."""

    def __init__(self, sinks: list[Sink], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sinks, self._clock, self._written = sinks, clock, -_PAUSE

    def __call__(self, event: Event) -> None:
        """Hear of a step or a validation."""
        if isinstance(event, StepEvent):
            if self._clock() - self._written < _PAUSE:
                return
            self._written = self._clock()
            numbers = {"loss": event.loss, "gradient_norm": event.gradient_norm, **event.parts}
            named = {f"train/{name}": value for name, value in numbers.items()}
        else:
            named = {f"valid/{name}": value for name, value in event.metrics.items()}
            named["epoch"] = float(event.epoch)
        named["learning_rate"] = event.learning_rate
        for sink in self._sinks:
            sink.write(named, event.step)


class TensorBoard:
    """Event files in the folder `tensorboard` of a run."""

    def __init__(self, config: Config, folder: Path, resume: bool) -> None:
        del config
        _needs("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        place, begin = folder / "tensorboard", None
        if resume:
            begin = int(last_line(folder / HISTORY).get("step", 0)) + 1
        else:
            for old in place.glob("events.out.tfevents.*"):  # of the run that this one replaces
                old.unlink()
        self._writer: Any = SummaryWriter(str(place), purge_step=begin)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """One curve for each name."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WeightsAndBiases:
    """A run of the project `bayrace`; the environment (WANDB_PROJECT, WANDB_MODE) may say other."""

    def __init__(self, config: Config, folder: Path, resume: bool) -> None:
        wandb = _needs("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / _ID
        known = place.read_text().strip() if resume and place.is_file() else None
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "bayrace"),
            name=str(folder),
            dir=str(folder),
            id=known,
            resume="allow",
            config=plain_values_of(config),
        )
        place.write_text(str(self._run.id))

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """All names of a step together."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """End the run there."""
        self._run.finish()


def _needs(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ConfigError(
            f"log: {package} is not installed; install it with: pip install 'bayrace[{package}]', "
            f"or leave {package} out of log"
        ) from None


_SINKS: dict[str, Callable[[Config, Path, bool], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
