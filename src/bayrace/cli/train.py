"""`bayrace train`: from a YAML configuration, or from a data file alone, to a potential."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bayrace.cli.common import INTERRUPTED, Debug, console, friendly, plural, warn
from bayrace.cli.describe import describe
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from bayrace.config import Config
    from bayrace.potential.potential import Potential
    from bayrace.train.team import Team
    from bayrace.workflow.member import SideBySide
    from bayrace.workflow.train import RunResult
FEW_VALID = 5  # structures, below which the size of σ is little more than a guess

Override = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="Change a key: -s train.lr=0.005; may be repeated."),
]


def _old_name(given: list[str] | None) -> list[str] | None:
    """Say that -o will come to mean the output here too."""
    if given:
        warn(
            "-o and --override are called -s and --set now; in the next version -o will be the "
            "output, as in other commands",
            word="note",
        )
    return given


OldOverride = Annotated[
    list[str] | None, typer.Option("--override", "-o", hidden=True, callback=_old_name)
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(friendly(train))


def train(
    source: Annotated[
        str, typer.Argument(help="A YAML configuration, a data file, or the folder of a run.")
    ],
    override: Override = None,
    old: OldOverride = None,
    max_time: Annotated[
        str | None, typer.Option(help="Stop after 30m, 2h, 90 (seconds); resumed time counts.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in the output folder.")
    ] = False,
    members: Annotated[
        int | None, typer.Option(help="Train an ensemble of this many, side by side.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Members at a time; default: one per core.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Train the members on the dask cluster at this address; its workers must see the "
            "folder. Default: this machine."
        ),
    ] = None,
    pin: Annotated[
        bool, typer.Option(help="Keep each member to its own core; not if others use the machine.")
    ] = True,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Train this potential further on the data file; its own training data are "
            "rehearsed. -s tune.epochs=20, -s tune.lr=0.001 change how.",
        ),
    ] = None,
    layers: Annotated[
        str, typer.Option(help="With --from: all, or last, which trains the last layer alone.")
    ] = "all",
    rehearse: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --from: old structures in each pass, drawn anew; default: all; 0: none, and "
            "the old data are not needed.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop where the data look wrong, instead of warning.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Train a potential.

    \b
    Examples:
      bayrace train data.xyz --max-time 30m     writes runs/data/model.bayrace
      bayrace train config.yaml
      bayrace train config.yaml -s train.lr=0.005 -s model.preset=medium
      bayrace train runs/data --resume          after Ctrl-C or a crash
      bayrace train config.yaml --members 8     an ensemble, with epistemic σ
      bayrace train config.yaml --members 8 --scheduler tcp://10.0.0.1:8786
      bayrace train config.yaml -s posterior=llpr
      bayrace train new.xyz --from model.bayrace --rehearse 200
      bayrace train new.xyz --from adopted.bayrace --layers last
    """
    del debug  # the decorator reads it
    overrides = [
        *(override or []),
        *(old or []),
        *([f"train.max_time={max_time}"] if max_time else []),
    ]
    if start is not None:
        from bayrace.cli.further import train_further

        train_further(start, source, overrides, layers=layers, rehearse=rehearse)
        return
    from bayrace.cli.together import follow_leader
    from bayrace.train.join import joined
    from bayrace.workflow.member import SideBySide

    with joined() as team:
        if not team.leads:
            follow_leader(source, overrides, team)
            return
        how = _How(resume=resume, overwrite=overwrite, strict=strict, team=team)
        beside = SideBySide(workers, pin, scheduler=scheduler)
        _train(source, overrides, how, members=members, beside=beside)


@dataclass(frozen=True)
class _How:
    """Options that trainings of one network and of several share."""

    resume: bool
    overwrite: bool
    strict: bool
    team: Team


def _train(
    source: str,
    overrides: list[str],
    how: _How,
    *,
    members: int | None,
    beside: SideBySide,
) -> None:
    from bayrace.cli.together import lead
    from bayrace.config import ConfigError
    from bayrace.workflow.start import configuration, members_of

    config = configuration(source, overrides)
    out = console()
    count = members_of(config, members=members, resume=how.resume)
    for name, given in (("--workers", beside.workers), ("--scheduler", beside.scheduler)):
        if count is None and given is not None:
            raise ConfigError(f"{name} is for ensembles; say how many members with --members 8")
    resume, overwrite = lead(config, how.team, members=count, resume=how.resume)
    overwrite = overwrite or how.overwrite
    if count is not None:
        from bayrace.cli.members import run_members

        run_members(
            config,
            out,
            members=count,
            how=beside,
            resume=resume,
            overwrite=overwrite,
            strict=how.strict,
        )
        return
    result = run_training(
        config, out, resume=resume, overwrite=overwrite, strict=how.strict, team=how.team
    )
    if result.fit.reason == "interrupted":
        out.print(f"stopped and saved; continue with: bayrace train {result.folder} --resume")
        raise typer.Exit(INTERRUPTED)


def run_training(
    config: Config,
    out: Console,
    *,
    resume: bool,
    overwrite: bool,
    strict: bool = False,
    team: Team | None = None,
) -> RunResult:
    """Train with a display, then print what came of it."""
    from bayrace.cli.progress import training_display
    from bayrace.train.callbacks import Callbacks
    from bayrace.train.loop import stop_on_signals
    from bayrace.train.team import ALONE
    from bayrace.workflow import train as run
    from bayrace.workflow.folder import check_folder

    tune_process()
    check_folder(config, resume=resume, overwrite=overwrite)
    prepared = run.prepare(config, strict=strict)
    describe(config, prepared, out)
    target, team = config.target.build(), team or ALONE
    if not team.alone:
        out.print(f"       {team.size} processes share every batch")
    team.wait()  # the others have their data too
    with stop_on_signals() as stop, training_display(out, target) as observer:
        result = run.train(
            config,
            prepared=prepared,
            resume=resume,
            overwrite=overwrite,
            callbacks=Callbacks(observer, stop, counting(out, config.posterior.kind)),
            team=team,
        )
    conclude(result, out)
    return result


def counting(out: Console, what: str) -> Callable[[int], None]:
    """A line every half minute with the number of structures that are done."""
    from bayrace.cli.progress import HEARTBEAT

    printed = time.monotonic()

    def progress(done: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= HEARTBEAT:
            printed = time.monotonic()
            out.print(f"{what}: {done} structures")

    return progress


def conclude(result: RunResult, out: Console) -> None:
    """Say why training ended, how good the best parameters are, and where they are."""
    from bayrace.cli.progress import mean_errors
    from bayrace.cli.tables import evaluation_table
    from bayrace.workflow.folder import MODEL

    reasons = {
        "epochs": "all epochs done",
        "time": "time is up",
        "interrupted": "interrupted",
        "cooldown": "no further improvement, so the learning rate fell early from the best weights",
    }
    reason = reasons.get(result.fit.reason, "no further improvement")
    shown = [
        f"{name} MAE {_digits(value)} {unit}"
        for name, value, unit in mean_errors(result.fit.metrics, result.potential.target)
    ]
    best = f"best validation in epoch {result.fit.epoch}: {', '.join(shown)}"
    out.print(f"{reason}; {best if shown else 'no validation was finished'}")
    out.print(f"uncertainty: {uncertainty(result.potential)}")
    for evaluation in result.evaluations:
        out.print(evaluation_table(evaluation))
    out.print(f"potential: {result.folder / MODEL}")
    sys.stdout.flush()


def _digits(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def uncertainty(potential: Potential) -> str:
    """Where the σ of a potential comes from, in a line."""
    from bayrace.models.noise import noise_spec_of

    name, calibration = potential.posterior.name, potential.calibration
    silent = noise_spec_of(potential.model).kind == "none"
    if name == "point":
        what = "none (posterior point, loss mse)" if silent else "noise alone (posterior point)"
    else:
        what = f"posterior {name}"
    if calibration is None:
        return what if silent and name == "point" else f"{what}, not calibrated"
    count = calibration.frames
    few = "; so few tell its size roughly (data.valid)" if count < FEW_VALID else ""
    return f"{what}, calibrated on {plural(count, 'validation structure')}{few}"
