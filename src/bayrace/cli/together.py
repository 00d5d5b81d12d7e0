"""`torchrun --nproc-per-node N -m bayrace train`: what each process does at the command line."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import typer

from bayrace.cli.common import FAILED, INTERRUPTED, console
from bayrace.config import Config
from bayrace.system.process import tune_process
from bayrace.system.signals import stop_on_signals
from bayrace.train.callbacks import Callbacks
from bayrace.train.checkpoint import LAST
from bayrace.train.diverged import TrainingDiverged
from bayrace.train.team import LostProcess, Team
from bayrace.workflow.start import configuration
from bayrace.workflow.together import check_team, follow, orphaned


def lead(config: Config, team: Team, *, members: int | None, resume: bool) -> tuple[bool, bool]:
    """Of the first process: let the others begin; whether the run is resumed, and overwritten.

    After a restart by torchrun (--max-restarts) the run goes on from its last checkpoint.
    """
    check_team(config, team, members=members)
    again = not team.alone and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    begun = (Path(config.output) / LAST).is_file()
    resume = resume or (again and begun)
    team.total([float(resume)])
    return resume, again and not begun


def follow_leader(source: str, overrides: list[str], team: Team) -> None:
    """Of the other processes: they are silent unless something is wrong with them alone."""
    logging.getLogger().setLevel(logging.ERROR)
    tune_process()
    try:
        resume = bool(team.total([0.0])[0])
        config = configuration(source, overrides)
        with stop_on_signals() as stop:
            ended = follow(config, team, resume=resume, callbacks=Callbacks(stop=orphaned(stop)))
    except (LostProcess, TrainingDiverged):  # which the first process tells about
        raise typer.Exit(FAILED) from None
    except (ValueError, OSError) as error:
        console(stderr=True).print(f"process {team.rank}: {error}", style="red")
        raise typer.Exit(FAILED) from None
    if ended == "interrupted":
        raise typer.Exit(INTERRUPTED)
