"""`bayrace fit`: give a trained network a posterior, by its own training data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayrace.cli.common import INTERRUPTED, Debug, Device, ModelFile, console, friendly
from bayrace.cli.methods import listing
from bayrace.cli.train import OldOverride, Override, counting
from bayrace.system.process import tune_process


def register(app: typer.Typer) -> None:
    """Add the command."""
    posteriors = listing("bayrace.posterior:POSTERIORS", offered=lambda each: each.fits())
    app.command("fit", cls=posteriors)(friendly(fit))


def fit(
    model: ModelFile,
    posterior: Annotated[
        str, typer.Option(help="Posterior to fit, one of those above, such as llpr.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: model-POSTERIOR.bayrace beside it.")
    ] = None,
    override: Override = None,
    old: OldOverride = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a training of swag or ivon.")
    ] = False,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Fit a posterior to a trained network, whose training data are read again.

    \b
    Posteriors:
      {methods}

    \b
    Examples:
      bayrace fit runs/data/model.bayrace --posterior llpr
      bayrace fit model.bayrace --posterior laplace -s posterior.laplace.structure=diagonal
      bayrace fit model.bayrace --posterior swag -s posterior.swag.epochs=20 --output swag.bayrace
      bayrace fit model.bayrace --posterior llpr -s data.train=moved/train.xyz
    """
    del debug
    from bayrace.cli.progress import training_display
    from bayrace.cli.tables import evaluation_table
    from bayrace.data.read import DataError
    from bayrace.potential.potential import Potential
    from bayrace.train.callbacks import Callbacks
    from bayrace.train.loop import stop_on_signals
    from bayrace.workflow import train as run
    from bayrace.workflow.prepare import network_of
    from bayrace.workflow.start import posterior_config
    from bayrace.workflow.tune import moved

    tune_process()
    out = console()
    potential = Potential.load(model, device=device)
    config = posterior_config(potential, posterior, [*(override or []), *(old or [])])
    target = output or model.with_name(f"{model.stem}-{config.posterior.kind}{model.suffix}")
    network_of(potential)  # says where it cannot be trained here
    try:
        prepared = run.prepare(config, initial=potential)
    except DataError as error:
        raise DataError(f"{error}{moved(config)}") from error
    out.print(
        f"{config.posterior.kind} for {model}, {len(prepared.train)} training and "
        f"{len(prepared.valid)} validation structures"
    )
    with stop_on_signals() as stop, training_display(out, config.target.build()) as observer:
        fitted = run.fit_posterior(
            potential,
            config,
            prepared=prepared,
            folder=target.with_suffix(".run"),
            resume=resume,
            callbacks=Callbacks(observer, stop, counting(out, config.posterior.kind)),
        )
    if fitted is None:
        out.print(f"stopped and saved; continue with: bayrace fit {model} ... --resume")
        raise typer.Exit(INTERRUPTED)
    fitted.save(target)
    for name, value in fitted.posterior.options().items():
        out.print(f"{name}: {value}")
    for evaluation in run.evaluate_sets(fitted, prepared.splits.test):
        out.print(evaluation_table(evaluation))
    out.print(f"potential: {target}")
