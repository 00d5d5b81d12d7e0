"""What a round comes to: a potential, trained further, calibrated and tested."""

from __future__ import annotations

import shutil
from typing import Any

from bayrace.data.write import write_frames
from bayrace.evaluate.evaluation import Evaluation, evaluate
from bayrace.potential.potential import Potential
from bayrace.train.checkpoint import LAST, write_atomically
from bayrace.train.signals import stop_on_signals
from bayrace.workflow.calibrate import calibrated
from bayrace.workflow.folder import ENSEMBLE
from bayrace.workflow.loop.bench import MODEL, TRAIN, VALID, Bench
from bayrace.workflow.member import SideBySide
from bayrace.workflow.start import train_any
from bayrace.workflow.tune import fine_tune, training_frames


def train_first(bench: Bench) -> dict[str, Any]:
    """The potential to start from, its data beside it."""
    config, folder = bench.config, bench.folder(0)
    if config.potential is not None:
        potential = Potential.load(config.potential)
    else:
        potential = _trained(bench)
    train, valid = training_frames(potential)
    write_frames(folder / VALID, valid)
    write_frames(folder / TRAIN, train)
    if potential.calibration is None:
        potential = calibrated(potential, valid, method=config.calibrate.method)
    potential.save(folder / MODEL)
    return {"train": len(train), "valid": len(valid)}


def tune(bench: Bench, number: int) -> dict[str, Any]:
    """Train all members further on everything there is, and calibrate what comes of it."""
    config, folder = bench.config, bench.folder(number) / "tune"
    train, valid = bench.data(number)
    if bench.state.result(number, "label")["newest"] is None:  # nothing to learn from
        write_atomically(bench.model(number), bench.model(number - 1).read_bytes())
        return {"train": len(train), "valid": len(valid)}
    if not any((folder / "run" / marker).is_file() for marker in (ENSEMBLE, LAST)):
        shutil.rmtree(folder / "run", ignore_errors=True)  # killed before there was anything
    with stop_on_signals() as stop:
        how = SideBySide(config.workers, config.pin, bench.watch.members, stop)
        potential = fine_tune(
            bench.model(number - 1),
            train,
            valid,
            tune=config.tune,
            folder=folder,
            seed=bench.seed(number),
            how=how,
        )
    if potential is None:
        raise KeyboardInterrupt
    calibrated(potential, valid, method=config.calibrate.method).save(bench.model(number))
    shutil.rmtree(folder / "run", ignore_errors=True)  # weights and states of the optimiser
    return {"train": len(train), "valid": len(valid)}


def judge(bench: Bench, number: int) -> dict[str, Any]:
    """Errors of a round's potential on the test sets."""
    potential = Potential.load(bench.model(number))
    return {
        name: errors(evaluate(potential, each, name=name)) for name, each in bench.tests.items()
    }


def errors(evaluation: Evaluation) -> dict[str, float | None]:
    """Errors and predicted σ (root mean square) of a set, eV and Å."""
    total, found = evaluation.accuracy.total, {}
    for name in ("energy", "energy_per_atom", "forces"):
        measured = getattr(total, name)
        found[f"{name}_rmse"] = None if measured is None else measured.rmse
        found[f"{name}_mae"] = None if measured is None else measured.mae
        found[f"{name}_std"] = getattr(evaluation, name).spread()
    return found


def _trained(bench: Bench) -> Potential:
    """The potential of the first training, which goes on where it was interrupted."""
    folder = bench.folder(0) / "train"
    config = bench.config.training(str(folder))
    with stop_on_signals() as stop:
        how = SideBySide(bench.config.workers, bench.config.pin, bench.watch.members, stop)
        potential = train_any(config, how=how)
    if potential is None:
        raise KeyboardInterrupt
    return potential
