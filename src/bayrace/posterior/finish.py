"""What a Gaussian over weights needs after the training that found it: noise heads and shifts.

Noise heads follow the errors of the weights they were trained with. The mean of a Gaussian over
weights is another network, and the training behind it may have used weights such as those of the
β-NLL, which a refit had undone before. So the heads are refitted at the mean, and held there: a
sample says otherwise what the energy is, not how to read noise off its features. Last come the
shifts of the mean and of the samples, see `bayrace.posterior.shifts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from bayrace.core.outputs import Params
from bayrace.core.protocols import Likelihood
from bayrace.data.dataset import Dataset
from bayrace.posterior.method import FitTask
from bayrace.posterior.shifts import Centred, mean_shift, with_shifts
from bayrace.train.refit import HeadedModel, refit_noise
from bayrace.train.settings import TrainSettings


@dataclass(frozen=True, eq=False)
class Finishing:
    """How it is done and who watches."""

    refit_epochs: int  # of the noise heads at the mean; 0: they stay as they are
    settings: TrainSettings  # precision, device and seed
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None  # structures done


class Finishable(Centred, Protocol):
    """A Gaussian whose mean can be moved and whose weights can be held."""

    def held(self, mean: Params, masks: Params) -> Self:
        """With this mean, and without variance where a mask is 1."""
        ...


_S = TypeVar("_S", bound=Finishable)


def finish(
    posterior: _S,
    model: HeadedModel,
    likelihood: Likelihood,
    train: Dataset,
    valid: Dataset,
    how: Finishing,
) -> _S:
    """The posterior with noise heads of its mean, held, and with the shifts of its samples."""
    if model.noise_spec.kind in ("energy", "joint"):
        mean = posterior.mean
        if how.refit_epochs:
            mean = _refitted_mean(model, mean, likelihood, train, valid, how)
        posterior = posterior.held(mean, model.noise_weights(mean))
    return with_shifts(posterior, model, train, progress=how.progress)


def finished(posterior: _S, task: FitTask) -> _S:
    """The same for what a fit was given, by the likelihood after its last epoch."""
    calls, settings = task.callbacks, task.settings
    how = Finishing(task.refit_epochs, settings, calls.stop, calls.progress)
    last = task.likelihood_at(settings.max_epochs)
    return finish(posterior, task.model, last, task.train, task.valid, how)


def refitted(task: FitTask, params: Params) -> Params:
    """Weights of a network whose noise heads are fitted once more, as after every training."""
    return refit_noise(
        task.model,
        params,
        task.likelihood_at(task.settings.max_epochs),
        task.train,
        task.valid,
        epochs=task.refit_epochs,
        settings=task.settings,
        stop=task.callbacks.stop,
    )


def _refitted_mean(
    model: HeadedModel,
    mean: Params,
    likelihood: Likelihood,
    train: Dataset,
    valid: Dataset,
    how: Finishing,
) -> Params:
    """The mean with heads that fit its errors, those of shifted energies."""
    shift = dict(zip(train.elements, mean_shift(model, mean, train).tolist(), strict=True))
    moved = {z: energy + shift[z] for z, energy in train.references.items()}
    return refit_noise(
        model,
        mean,
        likelihood,
        train.with_references(moved),
        valid.with_references(moved),
        epochs=how.refit_epochs,
        settings=how.settings,
        stop=how.stop,
    )
