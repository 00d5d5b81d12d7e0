"""A shallow ensemble (Kellner and Ceriotti 2024): members that share all but the last layer.

They are trained together, as one network with several energies: the spread of the members is the
standard deviation that the likelihood of the energy sees. Their covariance is that of their last
weights, so energy variances cost a small matrix product on top of a point prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Ge

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances, Outputs, Params
from bayrace.core.protocols import Model, Posterior
from bayrace.models.race.network import Race
from bayrace.posterior.gaussian.last_layer import LastLayer, last_layer_places
from bayrace.posterior.method import Example, FitTask, Fitted, PosteriorMethod
from bayrace.posterior.stored import Group, Layout


@dataclass(frozen=True)
class ShallowOptions(PosteriorMethod):
    """Members that share all but the last layer, trained together."""

    name: ClassVar[str] = "shallow"
    loss: ClassVar[str | None] = "shallow"
    members: Annotated[int, Ge(2)] = 16
    """Members: energies that one network predicts side by side."""

    def fit(self, task: FitTask) -> Fitted:
        """What is inside the network."""
        return Fitted(Shallow.of(task.model, task.weights, energy_weight=task.lambdas.energy))

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Shallow:
        """The stored ensemble."""
        return Shallow.restore(tensors, options)

    @classmethod
    def layout(cls, posterior: Posterior) -> Layout:  # noqa: ARG003
        """Weights, and a Gaussian over the last layer."""
        return Layout((Group("params/"),), last_layer=True)

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Of a network with members."""
        return {cls.name: lambda model, params: Shallow.of(model, params, energy_weight=1.0)}


@dataclass(frozen=True, eq=False)
class Shallow:
    """Members as deviations of the last layer from their mean; implements `ClosedForm`."""

    name: ClassVar[str] = "shallow"
    last: LastLayer  # its factor is the deviations / √M

    @staticmethod
    def of(model: Race, params: Params, *, energy_weight: float) -> Shallow:
        """The ensemble inside a network trained with `loss.kind: shallow`.

        `energy_weight` is the λ_E of the loss, which the spread is corrected for.
        """
        deviations = model.deviations(params).double()
        centred = deviations - deviations.mean(-1, keepdim=True)  # the loss sees only their spread
        factor = centred / (deviations.shape[-1] * energy_weight) ** 0.5
        return Shallow(LastLayer(params, last_layer_places(model, params), factor))

    @property
    def samples(self) -> int:
        """One: the mean, whose variances are known."""
        return 1

    @property
    def members(self) -> int:
        """Their number, M."""
        return self.last.factor.shape[1]

    def draw(self, samples: int, *, seed: int) -> Params:
        """The mean for one sample, else members chosen at random without repetition."""
        if samples == 1:
            return self.last.mean()
        if not 1 <= samples <= self.members:
            raise ValueError(f"samples={samples}: this ensemble has 1 to {self.members} to draw")
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(self.members, generator=generator)[:samples].sort().values
        deviations = self.last.factor * self.members**0.5
        return self.last.shifted(deviations[:, chosen.to(deviations.device)].T)

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
        """Variances over the members of the predictions `outputs` of their mean."""
        return self.last.spread(model, params, batch, outputs, forces=forces, stress=stress)

    def tensors(self) -> Params:
        """Mean weights and deviations."""
        return self.last.tensors()

    def options(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:  # noqa: ARG003
        """The ensemble that `tensors` came from."""
        return cls(LastLayer.restore(tensors))

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        return type(self)(self.last.to(device=device, dtype=dtype))


METHODS = (ShallowOptions,)
