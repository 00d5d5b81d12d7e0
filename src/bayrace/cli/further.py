"""`bayrace train DATA --from MODEL`: a potential that is trained further."""

from __future__ import annotations

from pathlib import Path

import typer

from bayrace.cli.common import INTERRUPTED, console
from bayrace.config import ConfigError
from bayrace.config.active import TuneConfig
from bayrace.config.load import make_section
from bayrace.models.module import ModuleModel
from bayrace.potential.potential import Potential
from bayrace.system.process import tune_process
from bayrace.system.signals import stop_on_signals
from bayrace.workflow.folder import MODEL
from bayrace.workflow.member import SideBySide
from bayrace.workflow.tune import train_from


def train_further(
    model: Path, source: str, overrides: list[str], *, layers: str, rehearse: int | None
) -> None:
    """Train with the settings tune.*, in the folder runs/NAME-further or that of output=..."""
    tune_process()
    out = console()
    folder = Path(f"runs/{Path(source).stem}-further")
    changes = []
    for each in overrides:
        key, _, value = each.partition("=")
        if key.strip() == "output":
            folder = Path(value)
        elif key.strip().startswith("tune."):
            changes.append(each.strip().removeprefix("tune."))
        else:
            raise ConfigError(
                f"{each}: with --from the rest is as in the training before; change output or "
                "tune.epochs, tune.lr, tune.batch_size, tune.refit_epochs"
            )
    if layers == "all" and isinstance(Potential.load(model).model, ModuleModel):
        raise ConfigError(
            f"{model}: of another package's network the last layer alone can be trained here; give "
            "--layers last, or a posterior for new data with `bayrace adopt`"
        )
    tune = make_section(
        TuneConfig, {"layers": layers, "rehearse": rehearse}, changes, source="train --from"
    )
    out.print(f"{model} further on {source}, {tune.epochs} epochs, layers: {layers}; {folder}")
    with stop_on_signals() as stop:
        tuned = train_from(model, [source], tune=tune, folder=folder, how=SideBySide(stop=stop))
    if tuned is None:
        out.print("stopped and saved; the same command continues")
        raise typer.Exit(INTERRUPTED)
    tuned.save(folder / MODEL)
    out.print(f"potential: {folder / MODEL}")
