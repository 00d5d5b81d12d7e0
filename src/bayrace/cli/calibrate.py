"""`bayrace calibrate`: fit a recalibration to validation data and store it in the potential."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayrace.cli.common import (
    Debug,
    Device,
    EdgeBudget,
    EnergyKey,
    ForcesKey,
    ModelFile,
    StressKey,
    console,
    counted,
    friendly,
    warn,
)
from bayrace.cli.methods import Arguments, chosen, listing
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from bayrace.calibrate.calibration import Calibration, Recalibration
    from bayrace.calibrate.method import RecalibrationMethod
    from bayrace.core.prediction import Prediction
    from bayrace.data.read import Frame
    from bayrace.potential.potential import Potential

Batches = list[tuple[list["Frame"], "Prediction"]]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate", cls=listing("bayrace.calibrate:RECALIBRATIONS"))(friendly(calibrate))


def calibrate(
    model: ModelFile,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Labelled files; default: the validation set of the training run."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="How σ is changed to agree with the errors.")
    ] = "scale",
    argument: Arguments = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default: MODEL-calibrated.bayrace."),
    ] = None,
    edge_budget: EdgeBudget = 20_000,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    stress_key: StressKey = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Make predicted uncertainties agree with errors on validation data.

    Predicted energies and forces do not change, only their σ and intervals do. Frames that the
    potential was trained on, or that are kept for its test, are refused.

    \b
    Methods:
      {methods}

    \b
    Examples:
      bayrace calibrate model.bayrace
      bayrace calibrate model.bayrace valid.xyz --method isotonic -o calibrated.bayrace
    """
    del debug
    from bayrace.calibrate import RECALIBRATIONS
    from bayrace.cli.evaluate import label_keys, read_labelled
    from bayrace.potential.potential import Potential

    tune_process()
    way = chosen(RECALIBRATIONS, method, argument)
    potential = Potential.load(model, device=device)
    if files:
        keys = label_keys(potential, energy=energy_key, forces=forces_key, stress=stress_key)
        frames = read_labelled(files, keys)
        name = ", ".join(Path(file).name for file in files)
    else:
        from bayrace.workflow.tune import training_frames

        frames, name = training_frames(potential)[1], "validation set"
    target = output or model.with_name(f"{model.stem}-calibrated{model.suffix}")
    calibrated = fit(potential, frames, method=way, name=name, edge_budget=edge_budget)
    calibrated.save(target)
    console().print(f"potential: {target}")


def fit(
    potential: Potential,
    frames: list[Frame],
    *,
    method: RecalibrationMethod,
    name: str,
    edge_budget: int,
) -> Potential:
    """The potential with a calibration fitted to these frames; tells what it does to them."""
    from bayrace.calibrate.seen import refuse_seen
    from bayrace.cli.tables import calibration_table
    from bayrace.evaluate.evaluation import evaluate_predictions
    from bayrace.workflow.calibrate import fitted_to

    if not potential.frames:
        warn(
            "this potential does not say which frames it was trained on; make sure that these are "
            "others"
        )
    refuse_seen(potential.frames, frames)
    raw = predictions(potential, frames, edge_budget=edge_budget)
    calibrated = fitted_to(potential, frames, raw, method=method)
    calibration = calibrated.calibration
    assert calibration is not None
    before = evaluate_predictions(raw, frames, name=name)
    after = evaluate_predictions(applied(calibration, raw), frames, name=name)
    console().print(calibration_table(before, after, factors(calibration)))
    return calibrated


def predictions(potential: Potential, frames: list[Frame], *, edge_budget: int) -> Batches:
    """Raw predictions with a progress bar."""
    from bayrace.workflow.calibrate import raw_predictions

    with counted("predicting", len(frames)) as progress:
        raw = raw_predictions(potential, frames, edge_budget=edge_budget, progress=progress)
        return [(list(some), prediction) for some, prediction in raw]


def applied(calibration: Calibration, batches: Batches) -> Batches:
    """The same predictions, calibrated."""
    import numpy as np

    return [
        (frames, calibration.apply(raw, np.concatenate([frame.numbers for frame in frames])))
        for frames, raw in batches
    ]


def factors(calibration: Calibration) -> dict[str, str]:
    """The factors of σ by quantity, with their 90 % intervals, as text."""
    from bayrace.data.frame import symbols_of

    def text(fitted: Recalibration) -> str:
        elements = sorted(fitted.by_element.items())
        grown = "" if fitted.power == 1 else f" (σ/{fitted.pivot:.3g})^{fitted.power - 1:.2g}"
        if elements:
            return ", ".join(f"{symbols_of([z])} {f:.3g}" for z, f in elements) + grown
        if grown:
            return f"{fitted.factor:.3g}{grown}"
        if fitted.interval is not None:
            return "{:.3g} ({:.3g} to {:.3g})".format(fitted.factor, *fitted.interval)
        return f"{fitted.factor:.3g}"

    fitted = {name: getattr(calibration, name) for name in ("energy", "forces", "stress")}
    return {name: text(each) for name, each in fitted.items() if each is not None}
