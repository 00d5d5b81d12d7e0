"""Train a potential further on more data: every member from its own weights, side by side.

    from bayrace.workflow.tune import fine_tune, training_frames
    train, valid = training_frames(potential)
    tuned = fine_tune("model.bayrace", [*train, *labelled], valid, tune=TuneConfig(), folder=...)

The network, its references and statistics stay those of the potential, and so does the validation
set. It holds nothing of the new data, so it must not decide which weights are best: the last ones
are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayrace.config import Config, ConfigError, changed, make_config
from bayrace.config.active import TuneConfig
from bayrace.config.build import label_keys
from bayrace.data.frame import Frame, elements_of, symbols_of
from bayrace.data.read import read_frames, split_isolated
from bayrace.data.split import frame_hashes, split
from bayrace.data.write import write_frames
from bayrace.models.foreign import ForeignSpec
from bayrace.models.module import ModuleModel
from bayrace.potential.potential import Potential
from bayrace.workflow import train as run
from bayrace.workflow.adopt import adopt_splits
from bayrace.workflow.calibrate import calibrated
from bayrace.workflow.member import SideBySide
from bayrace.workflow.start import train_any
from bayrace.workflow.training_data import moved as moved
from bayrace.workflow.training_data import training_frames as training_frames

TRAIN, VALID = "train.traj", "valid.traj"
NEW_VALID = 0.1
"""Share of new structures that joins the validation set."""


def fine_tune(
    model: str | Path,
    train: Sequence[Frame],
    valid: Sequence[Frame],
    *,
    tune: TuneConfig,
    folder: str | Path,
    seed: int = 0,
    how: SideBySide | None = None,
) -> Potential | None:
    """The potential of the file `model` after training on `train`, which holds the old data too.

    Works in `folder`, where an interrupted call is continued; None if `how.stop` ended it. Members
    of an ensemble are trained in processes of their own, side by side. Other posteriors are
    trained from their mean weights and fitted anew. A calibration is dropped: fit another. The
    weights of another package's network stay; its posterior is fitted to all data.
    """
    model, folder, how = Path(model), Path(folder), how or SideBySide()
    potential = Potential.load(model)
    old = np.isin(frame_hashes(train), potential.frames.get("train", ()))
    if not (folder / TRAIN).is_file():
        write_frames(folder / VALID, valid)
        write_frames(folder / TRAIN, [train[k] for k in np.argsort(~old, kind="stable")])
    if isinstance(potential.model, ModuleModel) and tune.layers == "all":
        return _adopted_again(potential, folder=folder, seed=seed)
    config = tuning_config(potential, tune, folder=folder / "run", seed=seed, known=int(old.sum()))
    if not config.loss.forces and all(frame.forces is not None for frame in train):
        config = changed(config, loss=changed(config.loss, forces=100.0))  # of adopted networks
    several = potential.posterior.samples if potential.posterior.name == "ensemble" else None
    initial = None if tune.start == "scratch" else model
    return train_any(config, members=several, initial=initial, how=how)


def _adopted_again(potential: Potential, *, folder: Path, seed: int) -> Potential:
    """A foreign network with a posterior for the data in `folder`; its energy zero stays."""
    raw = dict(potential.config) | {"seed": seed, "calibrate": "none"}
    raw["data"] = {"train": str(folder / TRAIN), "valid": str(folder / VALID)}
    config = make_config(raw, source="configuration of the potential")
    splits = run.read_splits(config)
    spec = potential.spec
    if isinstance(spec, ForeignSpec):  # which may know elements that are new here
        found = elements_of([*splits.train, *splits.valid])
        spec = type(spec).adopt(spec.weights, elements=found)
    return adopt_splits(spec, splits, config, shift=dict(potential.references))


def tuning_config(
    potential: Potential, tune: TuneConfig, *, folder: Path, seed: int, known: int
) -> Config:
    """The configuration of the potential's training, for the files that `fine_tune` writes.

    The first `known` frames of the training file are those that the potential has learnt from.
    """
    raw: dict[str, Any] = dict(potential.config)
    missing = [name for name in ("data", "model", "loss", "train") if name not in raw]
    if missing:
        raise ConfigError(
            f"the potential does not say how it was trained: {', '.join(missing)} missing; "
            "fine-tune one that `bayrace train` wrote"
        )
    raw |= {"seed": seed, "output": str(folder), "calibrate": "none"}
    references = {symbols_of([z]): energy for z, energy in potential.references.items()}
    raw["data"] = {
        "train": str(folder.parent / TRAIN),
        "valid": str(folder.parent / VALID),
        "config_weights": raw["data"].get("config_weights", {}),
        "references": references,
    }
    raw["loss"] = raw["loss"] | {"warmup_epochs": 0}
    if tune.refit_epochs is not None:
        raw["loss"] |= {"refit_epochs": tune.refit_epochs}
    rehearse = None
    if tune.rehearse is not None and tune.start == "checkpoint":
        rehearse = {"known": known, "take": min(tune.rehearse, known)}
    raw["train"] = raw["train"] | {
        "max_epochs": tune.epochs,
        "rehearse": rehearse,
        "layers": tune.layers,
        "lr": tune.lr,
        "schedule": "cosine",
        "batch_size": tune.batch_size or raw["train"]["batch_size"],
        "max_time": None,
        "early_stopping": None,
        "valid_every": tune.epochs,  # once: see above
    }
    return make_config(raw, source="configuration of the potential")


def train_from(
    model: str | Path,
    files: Sequence[str],
    *,
    tune: TuneConfig,
    folder: str | Path,
    seed: int = 0,
    how: SideBySide | None = None,
) -> Potential | None:
    """A potential after training on the labelled structures in some files, calibrated.

    A tenth of them joins its validation set. Its own training data are read again and rehearsed,
    as `tune.rehearse` says; with 0 they are not asked for, and may be forgotten. None if `how.stop`
    ended it; the same call continues.
    """
    potential = Potential.load(model)
    config = make_config(potential.config, source="configuration of the potential")
    read = read_frames(files, keys=label_keys(config.data, config.target), config_weights={})
    new = split_isolated(read)[0]
    unknown = set(elements_of(new)) - set(potential.elements)
    if unknown:
        raise ConfigError(
            f"{', '.join(files)}: the potential does not know {symbols_of(sorted(unknown))}; train "
            "a new one on all data"
        )
    train, valid = split(new, valid=NEW_VALID, seed=seed)
    if tune.rehearse != 0:
        old_train, old_valid = training_frames(potential)
        train, valid = [*old_train, *train], [*old_valid, *valid]
    tuned = fine_tune(model, train, valid, tune=tune, folder=folder, seed=seed, how=how)
    if tuned is None:
        return None
    return calibrated(tuned, valid, method=config.calibrate.method)
