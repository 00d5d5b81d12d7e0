"""Fit the posterior that a configuration names, to data that are ready and weights if they are.

What the files in `posterior/` need differs: some train, some only look at trained weights. Here is
the one place that knows; `bayrace train` and `bayrace fit` both come through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bayrace.config import Config, ConfigError
from bayrace.config.build import (
    distance_options,
    ivon_options,
    lambdas,
    laplace_options,
    likelihoods,
    llpr_options,
    swag_options,
    train_settings,
)
from bayrace.core.outputs import Params
from bayrace.core.protocols import Posterior
from bayrace.data.dataset import Dataset
from bayrace.data.read import Frame
from bayrace.models.race.network import Race
from bayrace.posterior import distance, ivon, laplace, llpr, swag
from bayrace.posterior.point import Point
from bayrace.posterior.settle import Settling, settle
from bayrace.posterior.shallow import Shallow
from bayrace.train.checkpoint import LAST
from bayrace.train.loop import Event, FitResult


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
    model: Race


@dataclass(frozen=True)
class Watch:
    """Who hears of a fit while it goes on, and who may end it."""

    observer: Callable[[Event], None] = lambda _: None  # steps and validations, where it trains
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None  # structures done, where it only looks


def fit_posterior(
    config: Config,
    ready: Prepared,
    params: Params | None,
    *,
    folder: Path,
    resume: bool,
    watch: Watch,
) -> tuple[Posterior, FitResult | None]:
    """The posterior `config.posterior`, fitted to trained weights `params`.

    SWAG and IVON train in `folder`, and can be resumed there; IVON starts afresh where there are no
    weights. The second result is that of the training, None where there is none.
    """
    kind = config.posterior.kind
    if kind == "ivon":
        return train_ivon(config, ready, params, folder=folder, resume=resume, watch=watch)
    if params is None:
        raise ValueError(f"posterior {kind} is fitted to trained weights; give them")
    if kind != "swag":
        return _attached(config, ready, params, watch), None
    tail, result = swag.fit(
        ready.model,
        likelihoods(config.loss),
        ready.train,
        ready.valid,
        settings=train_settings(config),
        folder=folder,
        options=swag_options(config),
        refit_epochs=config.loss.refit_epochs,
        initial=params,
        resume=resume and (folder / LAST).is_file(),
        observer=watch.observer,
        stop=watch.stop,
        progress=watch.progress,
    )
    return tail or Point(result.params), result


def swag_recorder(config: Config, folder: Path) -> swag.Recorder | None:
    """What a training must call after its epochs where SWAG takes its snapshots; else None."""
    options = swag_options(config)
    wanted = config.posterior.kind == "swag" and options.start is not None
    return swag.Recorder(folder, options) if wanted else None


def recorded_swag(
    config: Config, ready: Prepared, recorder: swag.Recorder, *, watch: Watch
) -> Posterior:
    """SWAG from the snapshots of a training that has ended."""
    settings = train_settings(config)
    how = Settling(config.loss.refit_epochs, settings, watch.stop, watch.progress)
    last = likelihoods(config.loss)(config.train.max_epochs)
    gaussian = recorder.posterior(settings)
    return settle(gaussian, ready.model, last, ready.train, ready.valid, how)


def train_ivon(
    config: Config,
    ready: Prepared,
    params: Params | None,
    *,
    folder: Path,
    resume: bool,
    watch: Watch,
) -> tuple[Posterior, FitResult]:
    """IVON is a training of its own, from `params` or, if None, from the beginning."""
    return ivon.fit(
        ready.model,
        likelihoods(config.loss),
        ready.train,
        ready.valid,
        settings=train_settings(config),
        folder=folder,
        options=ivon_options(config),
        refit_epochs=config.loss.refit_epochs,
        initial=params,
        resume=resume,
        observer=watch.observer,
        stop=watch.stop,
        progress=watch.progress,
    )


def _attached(config: Config, ready: Prepared, params: Params, watch: Watch) -> Posterior:
    """What only looks at trained weights."""
    kind, weights = config.posterior.kind, lambdas(config.loss)
    if kind == "shallow":
        return Shallow.of(ready.model, params, energy_weight=weights.energy)
    if kind == "distance":
        return distance.fit(
            ready.model,
            params,
            ready.train,
            ready.valid,
            options=distance_options(config),
            lambdas=weights,
            progress=watch.progress,
        )
    if kind == "llpr":
        return llpr.fit(
            ready.model,
            params,
            ready.train,
            ready.valid,
            options=llpr_options(config),
            lambdas=weights,
            seed=config.seed,
            progress=watch.progress,
        )
    if kind == "laplace":
        return laplace.fit(
            ready.model,
            params,
            ready.train,
            options=laplace_options(config),
            lambdas=weights,
            progress=watch.progress,
        )
    raise ConfigError(
        f"posterior: {kind} cannot be fitted to trained weights; use distance, llpr, laplace, swag "
        "or ivon, or train an ensemble with `bayrace train --members 5`"
    )
