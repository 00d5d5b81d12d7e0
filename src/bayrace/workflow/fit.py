"""What a training and the fit of a posterior start from: data that are ready, and the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayrace.config import Config
from bayrace.config.build import likelihoods, shallow_members, train_settings
from bayrace.core.outputs import Params
from bayrace.core.protocols import ModelSpec
from bayrace.data.dataset import Dataset
from bayrace.data.disk import DiskDataset
from bayrace.data.read import Frame
from bayrace.models.noise import Lambdas
from bayrace.posterior.method import FitTask, PosteriorMethod
from bayrace.train.callbacks import Callbacks
from bayrace.workflow.on_disk import OnDisk


@dataclass(frozen=True, eq=False)
class Splits:
    """Frames of a run; isolated atoms are set apart."""

    train: list[Frame]
    valid: list[Frame]
    test: Mapping[str, list[Frame]]
    isolated: Mapping[int, float]  # eV by atomic number, from the training files
    disk: OnDisk | None = None  # all training structures, where `train` is a sample of them


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that is ready before the first step."""

    splits: Splits
    train: Dataset
    valid: Dataset
    lambdas: Lambdas  # weights of the loss
    spec: ModelSpec
    model: Any  # the network, with the capabilities that training asks for
    stream: DiskDataset | None = None  # what is trained on, where `train` is a sample of it


def fit_task(
    config: Config, ready: Prepared, params: Params | None, *, folder: Path, calls: Callbacks
) -> FitTask:
    """What the posterior of a configuration is fitted with."""
    return FitTask(
        model=ready.model,
        params=params,
        train=ready.train,
        valid=ready.valid,
        lambdas=ready.lambdas,
        likelihood_at=likelihoods(config.loss, ready.lambdas, members=shallow_members(config)),
        settings=train_settings(
            config,
            stress=ready.lambdas.stress > 0,
            pretrained=bool(getattr(ready.spec, "pretrained", "")),
        ),
        refit_epochs=config.loss.refit_epochs,
        folder=folder,
        callbacks=calls,
        stream=ready.stream,
    )


def posterior_method(config: Config) -> PosteriorMethod:
    """The method of a configuration, with its options."""
    method: PosteriorMethod = config.posterior.method
    return method
