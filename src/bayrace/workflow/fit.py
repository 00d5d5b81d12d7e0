"""What a training and the fit of a posterior start from: data that are ready, and the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayrace.config import Config
from bayrace.config.build import lambdas, likelihoods, shallow_members, train_settings
from bayrace.core.outputs import Params
from bayrace.core.protocols import ModelSpec
from bayrace.data.dataset import Dataset
from bayrace.data.read import Frame
from bayrace.posterior.method import FitTask, PosteriorMethod
from bayrace.train.callbacks import Callbacks


@dataclass(frozen=True, eq=False)
class Splits:
    """Frames of a run; isolated atoms are set apart."""

    train: list[Frame]
    valid: list[Frame]
    test: Mapping[str, list[Frame]]
    isolated: Mapping[int, float]  # eV by atomic number, from the training files


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that is ready before the first step."""

    splits: Splits
    train: Dataset
    valid: Dataset
    spec: ModelSpec
    model: Any  # the network, with the capabilities that training asks for


def fit_task(
    config: Config, ready: Prepared, params: Params | None, *, folder: Path, calls: Callbacks
) -> FitTask:
    """What the posterior of a configuration is fitted with."""
    return FitTask(
        model=ready.model,
        params=params,
        train=ready.train,
        valid=ready.valid,
        lambdas=lambdas(config.loss),
        likelihood_at=likelihoods(config.loss, members=shallow_members(config)),
        settings=train_settings(config),
        refit_epochs=config.loss.refit_epochs,
        folder=folder,
        callbacks=calls,
    )


def posterior_method(config: Config) -> PosteriorMethod:
    """The method of a configuration, with its options."""
    method: PosteriorMethod = config.posterior.method
    return method
