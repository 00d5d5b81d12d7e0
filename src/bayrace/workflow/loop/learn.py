"""What a round comes to: a potential, trained further, calibrated and tested."""

from __future__ import annotations

import shutil

from bayrace.data.write import write_frames
from bayrace.evaluate.evaluation import Evaluation, evaluate
from bayrace.potential.potential import Potential
from bayrace.system.signals import stop_on_signals
from bayrace.train.checkpoint import LAST, write_atomically
from bayrace.workflow.calibrate import calibrated
from bayrace.workflow.folder import ENSEMBLE
from bayrace.workflow.loop.steps import Scored, Trained
from bayrace.workflow.loop.workspace import MODEL, TRAIN, VALID, Workspace
from bayrace.workflow.member import SideBySide
from bayrace.workflow.start import train_any
from bayrace.workflow.tune import fine_tune, training_frames


def train_first(workspace: Workspace) -> Trained:
    """The potential to start from, its data beside it."""
    config, folder = workspace.config, workspace.folder(0)
    if config.potential is not None:
        potential = Potential.load(config.potential)
    else:
        potential = _trained(workspace)
    train, valid = training_frames(potential)
    write_frames(folder / VALID, valid)
    write_frames(folder / TRAIN, train)
    if potential.calibration is None:
        potential = calibrated(potential, valid, method=config.calibrate.method)
    potential.save(folder / MODEL)
    return Trained(len(train), len(valid))


def tune(workspace: Workspace, number: int) -> Trained:
    """Train all members further on everything there is, and calibrate what comes of it."""
    config, folder = workspace.config, workspace.folder(number) / "tune"
    train, valid = workspace.data(number)
    if workspace.labels(number).newest is None:  # nothing to learn from
        write_atomically(workspace.model(number), workspace.model(number - 1).read_bytes())
        return Trained(len(train), len(valid))
    if not any((folder / "run" / marker).is_file() for marker in (ENSEMBLE, LAST)):
        shutil.rmtree(folder / "run", ignore_errors=True)  # killed before there was anything
    with stop_on_signals() as stop:
        how = SideBySide(config.workers, config.pin, workspace.watch.members, stop)
        potential = fine_tune(
            workspace.model(number - 1),
            train,
            valid,
            tune=config.tune,
            folder=folder,
            seed=workspace.seed(number),
            how=how,
        )
    if potential is None:
        raise KeyboardInterrupt
    calibrated(potential, valid, method=config.calibrate.method).save(workspace.model(number))
    shutil.rmtree(folder / "run", ignore_errors=True)  # weights and states of the optimiser
    return Trained(len(train), len(valid))


def judge(workspace: Workspace, number: int) -> Scored:
    """Errors of a round's potential on the test sets."""
    potential, sets = Potential.load(workspace.model(number)), workspace.tests
    return Scored({name: errors(evaluate(potential, sets[name], name=name)) for name in sets})


def errors(evaluation: Evaluation) -> dict[str, float | None]:
    """Errors and predicted σ (root mean square) of a set, eV and Å."""
    total, found = evaluation.accuracy.total, {}
    for name in ("energy", "energy_per_atom", "forces"):
        measured = getattr(total, name)
        found[f"{name}_rmse"] = None if measured is None else measured.rmse
        found[f"{name}_mae"] = None if measured is None else measured.mae
        found[f"{name}_std"] = getattr(evaluation, name).spread()
    return found


def _trained(workspace: Workspace) -> Potential:
    """The potential of the first training, which goes on where it was interrupted."""
    folder = workspace.folder(0) / "train"
    config = workspace.config.training(str(folder))
    with stop_on_signals() as stop:
        how = SideBySide(
            workspace.config.workers, workspace.config.pin, workspace.watch.members, stop
        )
        potential = train_any(config, how=how)
    if potential is None:
        raise KeyboardInterrupt
    return potential
