"""What a model, a likelihood and a posterior are, and what each may also offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.noise import NoiseSpec
from bayrace.core.outputs import Derivatives, EpistemicVariances, Heads, LossParts, Outputs, Params


@runtime_checkable
class Model(Protocol):
    """An energy as a pure function of parameters and graph."""

    @property
    def cutoff(self) -> float:
        """Å."""
        ...

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers in ascending order; GraphBatch.species indexes this tuple."""
        ...

    def init(
        self,
        seed: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Params:
        """Random parameters, the same for every dtype and device."""
        ...

    def energy(self, params: Params, batch: GraphBatch) -> Heads:
        """Energies of the structures; references are not included."""
        ...


@runtime_checkable
class NoisyModel(Model, Protocol):
    """A model with noise heads, that says what they mean."""

    @property
    def noise_spec(self) -> NoiseSpec:
        """Which noise the heads describe, and how."""
        ...


@runtime_checkable
class LinearModel(Model, Protocol):
    """A model whose energies are linear in some of its weights.

    Its Heads.last_features are what those weights multiply.
    """

    def last_layer(self, params: Params) -> Tensor:
        """Those weights, (D,)."""
        ...

    def with_last_layer(self, params: Params, weights: Tensor) -> Params:
        """The same parameters with other weights there."""
        ...


@runtime_checkable
class Differentiated(Protocol):
    """A model with a quick way to the derivatives of its energy."""

    def derivatives(self, params: Params, batch: GraphBatch) -> Derivatives | None:
        """Energy, heads and derivatives by positions and strain, differentiable in `params`.

        None where the quick way cannot be gone: then `energy` is differentiated.
        """
        ...

    def quick(self, dtype: torch.dtype) -> bool:
        """Whether folded weights of this dtype go the quick way on the CPU."""
        ...


@runtime_checkable
class RescaledStart(Protocol):
    """A model whose initial parameters are better for having seen some structures."""

    def rescaled(self, params: Params, batch: GraphBatch) -> Params:
        """The same draw, made smaller where it is too large for these structures."""
        ...


@runtime_checkable
class Foldable(Protocol):
    """A model that predicts faster with weights that it has multiplied out beforehand."""

    def fold(self, params: Params) -> Params:
        """Weights of one member that `energy` takes as it takes `params`."""
        ...


@runtime_checkable
class SideBySide(Protocol):
    """A model that takes the weights of several members with copies of a batch."""

    def side_by_side(self, members: Params) -> bool:
        """Whether it takes these, stacked (M, ...), with `bayrace.data.batch.repeated`."""
        ...


@runtime_checkable
class MessagePassing(Protocol):
    """A model whose atoms see others along edges, and no further."""

    @property
    def hops(self) -> int:
        """Edges from an atom to the farthest one that its energy depends on."""
        ...


@runtime_checkable
class Shaped(Protocol):
    """A model that knows the shapes of its parameters without making any."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """By the names of the parameters."""
        ...


class ModelSpec(Protocol):
    """Everything that defines a model except its weights; what a file stores of it.

    Registered by its name in `bayrace.models`.
    """

    name: ClassVar[str]
    """Of the kind of model, in files and configurations."""

    @property
    def cutoff(self) -> float:
        """Å."""
        ...

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers in ascending order."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        ...

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`; ValueError for what is missing or unknown."""
        ...

    def build(self) -> Model:
        """The energy as a function of parameters; ValueError says what it lacks and the remedy."""
        ...


@runtime_checkable
class Experienced(Protocol):
    """A specification of networks that may begin with weights of other training data."""

    @property
    def pretrained(self) -> str:
        """The name of these weights; empty where there were none."""
        ...


class ModelOptions(Protocol):
    """What one may choose of a network that is trained here: the section `model`."""

    @property
    def kind(self) -> str:
        """The name of the specification."""
        ...

    @property
    def cutoff(self) -> float:
        """Å."""
        ...

    @property
    def dtype(self) -> Literal["float32", "float64"]:
        """Precision of the network."""
        ...


class Likelihood(Protocol):
    """A loss on the outputs of one weight sample."""

    def loss(self, outputs: Outputs, labels: Labels, batch: GraphBatch) -> LossParts:
        """The scalar to minimise; labels that are nan do not count."""
        ...

    def score(self) -> Likelihood:
        """The loss by which models are compared on held-out data, free of aids to training."""
        ...


class Posterior(Protocol):
    """A distribution over weights, as predictions use it and as a file stores it."""

    name: ClassVar[str]
    """Of its file and in the configuration."""

    @property
    def samples(self) -> int:
        """How many weight samples a prediction averages over."""
        ...

    def draw(self, samples: int, *, seed: int) -> Params:
        """Weight samples stacked along a leading dimension of length `samples`."""
        ...

    def tensors(self) -> Params:
        """Everything it is made of that is a tensor, for the file."""
        ...

    def options(self) -> dict[str, Any]:
        """The rest, JSON-able."""
        ...

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        """The posterior that `tensors` and `options` came from."""
        ...

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        ...


@runtime_checkable
class Shifted(Protocol):
    """A posterior whose weight samples come with energies of the elements, beside the references.

    They were fitted to training energies; see `bayrace.posterior.shifts`.
    """

    def shifts(self, samples: int, *, seed: int) -> Tensor | None:
        """Of the weights that `draw` gives for the same arguments: (M, Z) eV, float64.

        None where none were fitted; ValueError for samples whose shifts are not known.
        """
        ...


@runtime_checkable
class Noisy(Protocol):
    """A posterior that found the noise of the labels itself, for models that predict none."""

    def label_noise(self) -> Mapping[str, float]:
        """Standard deviations of "energy" (eV), "forces" (eV/Å), "stress" (eV/Å³) components.

        That of the stress is of its normal components; shear ones have 1/√2 of it.
        """
        ...


@runtime_checkable
class NoiseScaled(Protocol):
    """A posterior that found how much of the network's own noise is real."""

    def noise_scale(self) -> Mapping[str, float]:
        """Factors of the aleatoric variances of "energy", "forces" and "stress", where known."""
        ...


@runtime_checkable
class Novel(Protocol):
    """A closed form that also tells how unlike the training structures a whole structure is."""

    def novelty(self, batch: GraphBatch, outputs: Outputs) -> Tensor | None:
        """(S,) float64, 1 is usual; None where the file does not tell."""
        ...


@runtime_checkable
class ClosedForm(Protocol):
    """A posterior whose predictive variances need no samples; its one sample is the mean."""

    def spread(
        self,
        model: Model,
        params: Params,
        batch: GraphBatch,
        outputs: Outputs,
        *,
        forces: bool,
        stress: bool,
    ) -> EpistemicVariances:
        """Variances of the predictions `outputs` that `model` makes with the mean `params`."""
        ...
