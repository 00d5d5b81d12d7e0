"""One training run, from a configuration to a potential: what `bayrace train` does, in Python.

    from bayrace.config import load_config
    from bayrace.workflow.train import train
    result = train(load_config("config.yaml"))
    result.potential.predict(atoms)

What its folder holds is told in bayrace.workflow.folder. Several members in one folder are the
business of bayrace.workflow.ensemble.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.config import Config, ConfigError, dump_config, plain_values_of
from bayrace.config.build import train_settings
from bayrace.core.outputs import Params
from bayrace.core.protocols import Posterior
from bayrace.data.distances import Distances
from bayrace.data.read import Frame
from bayrace.data.split import fingerprint, frame_hashes
from bayrace.evaluate.evaluation import Evaluation, evaluate
from bayrace.models.partial import LastLayerOnly
from bayrace.posterior import POSTERIORS
from bayrace.posterior.finish import refitted
from bayrace.posterior.method import FitTask, Fitted, PosteriorMethod
from bayrace.posterior.point import Point
from bayrace.potential.leeway import strict_below
from bayrace.potential.opened import altered
from bayrace.potential.potential import Potential
from bayrace.train.callbacks import Callbacks as Callbacks
from bayrace.train.callbacks import StoppedError
from bayrace.train.checkpoint import write_atomically
from bayrace.train.join import leave
from bayrace.train.loop import FitResult, fit
from bayrace.train.task import Task
from bayrace.train.team import ALONE, Team
from bayrace.workflow.calibrate import calibrated
from bayrace.workflow.fit import (
    Prepared,
    Splits,
    fit_task,
    posterior_method,
)
from bayrace.workflow.folder import (
    CONFIG,
    MODEL,
    POINT,
    TEST,
    check_folder,
    clear_folder,
    locked,
    remove_leftovers,
)
from bayrace.workflow.logs import check_log, logged
from bayrace.workflow.prepare import network_of
from bayrace.workflow.prepare import prepare as prepare
from bayrace.workflow.prepare import read_splits as read_splits


@dataclass(frozen=True, eq=False)
class RunResult:
    """Where a run ended; `fit.reason` says why."""

    potential: Potential
    fit: FitResult
    folder: Path
    evaluations: tuple[Evaluation, ...]  # of the test sets; empty if the run was interrupted


def train(
    config: Config,
    *,
    prepared: Prepared | None = None,
    initial: Potential | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Callbacks | None = None,
    patience: float = 0.0,
    team: Team = ALONE,
) -> RunResult:
    """Train, write the folder `config.output`, and evaluate on the test data.

    `initial` is a potential whose network is trained further, with its references and statistics.
    `overwrite` removes the files of an earlier run; `resume` continues it. `callbacks` hear of it
    and may end it. `patience`: seconds to wait for another process that trains in the folder.
    `team`: processes that train it together, of which this is the first; the others `follow`, see
    bayrace.workflow.together.
    """
    check_log(config)
    check_folder(config, resume=resume, overwrite=overwrite)
    with locked(Path(config.output), patience=patience):
        check_folder(config, resume=resume, overwrite=overwrite)  # nobody can change it any more
        return _train(
            config, prepared, initial, resume=resume, callbacks=callbacks or Callbacks(), team=team
        )


def _train(
    config: Config,
    prepared: Prepared | None,
    initial: Potential | None,
    *,
    resume: bool,
    callbacks: Callbacks,
    team: Team,
) -> RunResult:
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    ready = prepared or prepare(config, initial=initial)
    folder = _make_folder(config, resume=resume)
    start = None if initial is None else _mean_weights(initial, train_settings(config).device)
    with logged(config, callbacks, resume=resume) as calls:
        posterior, fitted = _train_posterior(
            config, ready, folder, start=start, resume=resume, callbacks=calls, team=team
        )
    potential = make_potential(config, ready, fitted, posterior)
    if fitted.reason != "interrupted":
        potential = calibrated(potential, ready.splits.valid, method=config.calibrate.method)
    potential.save(folder / MODEL)
    evaluations: tuple[Evaluation, ...] = ()
    if fitted.reason != "interrupted":
        try:
            evaluations = evaluate_sets(potential, ready.splits.test, stop=callbacks.stop)
        except StoppedError:
            fitted = replace(fitted, reason="interrupted")
        write_json(folder / TEST, evaluations)
    return RunResult(potential, fitted, folder, evaluations)


def _train_posterior(
    config: Config,
    ready: Prepared,
    folder: Path,
    *,
    start: Params | None,
    resume: bool,
    callbacks: Callbacks,
    team: Team,
) -> tuple[Posterior, FitResult]:
    """Train the network, from `start` if given, and fit the posterior of the configuration."""
    method = posterior_method(config)
    if method.trains == "several":
        raise ConfigError(
            f"posterior: {method.name} is several runs; train it with `bayrace train` or "
            "bayrace.workflow.ensemble.train_members"
        )
    task = replace(fit_task(config, ready, start, folder=folder, calls=callbacks), resume=resume)
    together = in_team(task, team)
    if method.trains == "itself":
        return _both(method.fit(together))
    recorder = method.recorder(folder / method.name)
    if recorder is not None:  # it counts on all epochs
        together = replace(together, settings=replace(together.settings, cooldown=False))
    fitted = train_network(config, together, recorder or (lambda *_: None))
    leave()
    fitted = _with_refitted_noise(task, config, fitted)
    if method.name == Point.name or fitted.reason == "interrupted":
        return Point(fitted.params), fitted
    if method.name != "distance":  # which keeps the network as it is
        make_potential(config, ready, fitted, Point(fitted.params)).save(folder / POINT)
    task = replace(task, params=fitted.params, folder=folder / method.name)
    if recorder is not None:
        return recorder.fit(task), fitted
    posterior, tail = _fitted(method, task)
    if posterior is None or (tail is not None and tail.reason == "interrupted"):
        return Point(fitted.params), replace(fitted, reason="interrupted")
    return posterior, fitted


def in_team(task: FitTask, team: Team) -> FitTask:
    """The task for processes that train together."""
    return replace(task, settings=replace(task.settings, team=team))


def train_network(
    config: Config, task: FitTask, after_epoch: Callable[[int, Params], None]
) -> FitResult:
    """The network after its training, of which it may be the last layer alone that is trained."""
    part = None
    if config.train.layers == "last":
        if task.params is None:
            raise ConfigError("train.layers: last needs trained weights to start from (--from)")
        part = LastLayerOnly(task.model, task.params)
    with nullcontext() if task.stream is None else task.stream.reading():
        result = fit(
            Task(
                part or task.model,
                task.likelihood_at,
                task.stream or task.train,
                task.valid,
                task.settings,
                task.folder,
            ),
            resume=task.resume,
            initial=task.params if part is None else part.free,
            callbacks=replace(task.callbacks, after_epoch=after_epoch),
        )
    return result if part is None else replace(result, params=part.merged(result.params))


def _fitted(method: PosteriorMethod, task: FitTask) -> Fitted:
    """What a method makes of trained weights; no posterior if `stop` ended it."""
    try:
        return method.fit(replace(task, callbacks=task.callbacks.ending()))
    except StoppedError:
        return Fitted(None)


def _both(found: Fitted) -> tuple[Posterior, FitResult]:
    """Of a method that is itself the training."""
    assert found.training is not None
    return found.posterior or Point(found.training.params), found.training


def _with_refitted_noise(task: FitTask, config: Config, fitted: FitResult) -> FitResult:
    """The result with its noise heads fitted once more, where it has some and is at its end."""
    noisy = config.loss.kind in ("nll_e", "nll_jef")
    if not noisy or not task.refit_epochs or fitted.reason == "interrupted":
        return fitted
    return replace(fitted, params=refitted(task, fitted.params))


def fit_posterior(
    potential: Potential,
    config: Config,
    *,
    prepared: Prepared | None = None,
    folder: Path,
    resume: bool = False,
    callbacks: Callbacks | None = None,
) -> Potential | None:
    """The potential with the posterior `config.posterior` fitted to its weights and data.

    What trains (SWAG, IVON) does so in `folder`. None if `callbacks.stop` ended it; resume it then.
    A calibration belongs to the posterior it was fitted to, and is fitted anew.
    """
    if not POSTERIORS.find(potential.posterior.name).keeps_weights:
        raise ConfigError(
            f"posterior: this potential already has {potential.posterior.name}; give the file of "
            f"one network, {POINT} beside it or a member's {MODEL}"
        )
    network_of(potential)  # says where it cannot be trained here
    ready = prepared or prepare(config, initial=potential)
    if fingerprint(ready.train.frames) != potential.fingerprint:
        raise ConfigError(
            f"data.train: {len(ready.train)} structures that are not those the potential was "
            "trained on; restore the files, or name them with -s data.train=..."
        )
    weights = _mean_weights(potential, str(potential.device))
    task = fit_task(config, ready, weights, folder=folder, calls=callbacks or Callbacks())
    posterior, tail = _fitted(posterior_method(config), replace(task, resume=resume))
    if posterior is None or (tail is not None and tail.reason == "interrupted"):
        return None
    fitted = altered(
        potential,
        posterior=posterior,
        config=plain_values_of(config),
        calibration=None,
        frames=seen_frames(ready.splits),
    )
    return calibrated(fitted, ready.splits.valid, method=config.calibrate.method)


def _mean_weights(potential: Potential, device: str) -> Params:
    """Weights of one network: those of a point, the mean of most posteriors."""
    drawn = potential.to(device=device).posterior.draw(1, seed=0)
    return {name: value[0].clone() for name, value in drawn.items()}


def make_potential(
    config: Config, ready: Prepared, fitted: FitResult, posterior: Posterior
) -> Potential:
    """The artifact of a finished fit."""
    distances = Distances.of(ready.train)
    statistics = {
        "train_frames": len(ready.train),
        "valid_frames": len(ready.valid),
        "train_atoms": sum(len(frame.numbers) for frame in ready.train.frames),
        "mean_neighbours": ready.train.mean_neighbours(),
        "force_rms": ready.train.force_rms(),
        "distance_gap": distances.usual(ready.train),
        "epoch": fitted.epoch,
        "reason": fitted.reason,
        "valid_metrics": dict(fitted.metrics),
    }
    if ready.stream is not None:
        statistics |= {"train_frames": len(ready.stream), "sampled_frames": len(ready.train)}
    potential = Potential(
        spec=ready.spec,
        posterior=posterior,
        references=ready.train.references,
        lambdas=ready.lambdas,
        statistics=statistics,
        config=plain_values_of(config),
        fingerprint=fingerprint(ready.train.frames),
        frames=seen_frames(ready.splits),
        distances=strict_below(distances, ready.spec),
    )
    vars(potential)["model"] = ready.model  # holds no weights, so it is built only once
    return potential


def seen_frames(splits: Splits) -> dict[str, NDArray[np.int64]]:
    """Hashes of the frames of a run, by their part in it."""
    test = [frame for frames in splits.test.values() for frame in frames]
    parts = {"train": splits.train, "valid": splits.valid, "test": test}
    return {name: frame_hashes(frames) for name, frames in parts.items() if frames}


def evaluate_sets(
    potential: Potential,
    sets: Mapping[str, Sequence[Frame]],
    *,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Evaluation, ...]:
    """Evaluate on each named set of frames; StoppedError once `stop` is true."""
    progress = Callbacks(stop=stop).ending().progress
    return tuple(
        evaluate(potential, frames, name=name, progress=progress) for name, frames in sets.items()
    )


def write_json(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """Write evaluations, eV and Å, as JSON; nothing where there are none."""
    if evaluations:
        content: dict[str, Any] = {each.name: each.to_json() for each in evaluations}
        write_atomically(path, json.dumps(content, indent=1).encode())


def _make_folder(config: Config, *, resume: bool) -> Path:
    """The folder of the run, without the files of the one it replaces."""
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    if not resume:
        clear_folder(folder)
    write_atomically(folder / CONFIG, dump_config(config).encode())  # a copied folder is its own
    return folder
