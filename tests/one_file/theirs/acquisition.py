"""The tallest energy per atom first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt
from torch import Tensor

from bayrace.core.prediction import Prediction
from bayrace.select.acquire.interface import Needs, OverAtoms, Pick, Pool, descending


@dataclass(frozen=True)
class Tallest:
    """The highest predicted energy first."""

    name: ClassVar[str] = "tallest"
    needs: ClassVar[Needs] = Needs("energy")
    factor: Annotated[float, Gt(0)] = 1.0
    """What energies are multiplied by."""

    def measure(self, prediction: Prediction, *, over_atoms: OverAtoms) -> dict[str, Tensor]:
        return {"height": self.factor * prediction.energy.mean}

    def order(self, pool: Pool, *, seed: int) -> Iterator[Pick]:
        yield from descending(pool, "height")
