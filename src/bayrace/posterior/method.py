"""What a posterior method is: options by which a posterior is fitted, and what a fit needs.

A file of a method holds a frozen dataclass that derives from `PosteriorMethod`, whose fields are
the section `posterior.NAME` of the configuration, and lists it in `METHODS`; then `posterior: NAME`
works everywhere. Other packages name theirs in an entry point of the group `bayrace.posteriors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from bayrace.core.outputs import Params
from bayrace.core.protocols import Likelihood, Posterior
from bayrace.data.dataset import Dataset
from bayrace.data.disk import DiskDataset
from bayrace.models.noise import Lambdas
from bayrace.posterior.stored import Layout
from bayrace.train.callbacks import Callbacks
from bayrace.train.loop import FitResult
from bayrace.train.settings import TrainSettings

Example = Callable[[Any, Params], Posterior]
"""Makes a posterior around the weights of a network in no time, for the conformance suite."""


@dataclass(frozen=True, eq=False)
class FitTask:
    """Everything that the fit of a posterior may need."""

    model: Any  # with the capabilities that the method asks for, of `bayrace.core.protocols`
    params: Params | None  # trained weights; None: there are none yet
    train: Dataset
    valid: Dataset
    lambdas: Lambdas  # weights of the training loss
    likelihood_at: Callable[[int], Likelihood]  # the loss of each epoch, from 0
    settings: TrainSettings  # for what trains; precision, device and seed for all
    refit_epochs: int  # of the noise heads at a new mean; 0: they stay as they are
    folder: Path  # of what trains
    resume: bool = False
    callbacks: Callbacks = field(default_factory=Callbacks)
    stream: DiskDataset | None = None  # all training data, where `train` is a sample of them

    @property
    def weights(self) -> Params:
        """The trained weights, for methods that only look at them."""
        if self.params is None:
            raise ValueError("this posterior is fitted to trained weights; give them")
        return self.params


class Fitted(NamedTuple):
    """What a fit ends with."""

    posterior: Posterior | None  # None where a training was ended before there was one
    training: FitResult | None = None  # of methods that train


class Recorder(Protocol):
    """Takes note of the weights while a network is trained, and makes a posterior of them."""

    def __call__(self, epoch: int, params: Params) -> None:
        """Hear of the weights after an epoch, from 1."""
        ...

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of what was heard, after the training."""
        ...


@dataclass(frozen=True)
class PosteriorMethod:
    """Options of a method; its first line of documentation is shown where methods are listed."""

    name: ClassVar[str]  # in the configuration and in files
    trains: ClassVar[Literal["no", "on", "itself", "several"]] = "no"
    """no: looks at trained weights. on: trains further from them. itself: replaces the training.
    several: is made of several trainings."""
    adopts: ClassVar[bool] = False  # asks for nothing but a last linear layer, of any network
    keeps_weights: ClassVar[bool] = False  # its mean is the trained network, to be fitted again
    loss: ClassVar[str | None] = None  # kind of the loss that the network is to be trained with

    def fit(self, task: FitTask) -> Fitted:  # noqa: ARG002
        """Fit it to trained weights and data."""
        raise unfitted(self.name)

    @classmethod
    def fits(cls) -> bool:
        """Whether it can be fitted to weights that were trained without it."""
        return cls.fit is not PosteriorMethod.fit and cls.loss is None

    def recorder(self, folder: Path) -> Recorder | None:  # noqa: ARG002 - most need none
        """What has to hear of the training itself; None: nothing."""
        return None

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Posterior:
        """The posterior that was stored under the name of this method."""
        raise NotImplementedError

    @classmethod
    def layout(cls, posterior: Posterior) -> Layout | None:  # noqa: ARG003
        """Which tensors a file must hold; None: any, if they are finite."""
        return None

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Posteriors for the conformance suite by labels that begin with the name."""
        return {}


def unfitted(name: str) -> ValueError:
    """What is said where trained weights are no use to a method."""
    return ValueError(
        f"posterior: {name} cannot be fitted to trained weights; use distance, llpr, "
        "laplace, swag or ivon, or train an ensemble with `bayrace train --members 5`"
    )
