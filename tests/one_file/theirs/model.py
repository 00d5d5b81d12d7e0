"""A pair potential, which is linear in its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Ge, Gt

from bayrace.core.target import Target
from bayrace.data.dataset import Dataset
from bayrace.models.noise import NoiseSpec
from bayrace.models.pair import PairModel


@dataclass(frozen=True)
class SpringyOptions:
    """A pair potential."""

    kind: Literal["springy"] = "springy"
    """Kind of network."""
    cutoff: Annotated[float, Gt(0)] = 4.0
    """Neighbours closer than this interact, Å."""
    functions: Annotated[int, Ge(1)] = 6
    """Radial functions of each pair of elements."""
    dtype: Literal["float32", "float64"] = "float64"
    """Precision of the network."""


@dataclass(frozen=True)
class SpringySpec:
    """What a file stores of it."""

    name: ClassVar[str] = "springy"
    options: ClassVar[type] = SpringyOptions
    elements: tuple[int, ...]
    cutoff: float
    functions: int

    @classmethod
    def of(
        cls, options: SpringyOptions, train: Dataset, *, noise: NoiseSpec, target: Target
    ) -> Self:
        if noise.kind != "none":
            raise ValueError("springy predicts no noise; train it with loss.kind: mse")
        return cls(train.elements, options.cutoff, options.functions)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "elements": tuple(values["elements"])})

    def build(self) -> PairModel:
        return PairModel(self.elements, self.cutoff, self.functions)
