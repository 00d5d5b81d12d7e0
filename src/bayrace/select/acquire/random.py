"""Random selection: what every other acquisition has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from bayrace.core.prediction import Prediction
from bayrace.select.acquire.interface import Needs, OverAtoms, Pick, Pool


@dataclass(frozen=True)
class Random:
    """Every structure with equal probability."""

    name: ClassVar[str] = "random"
    needs: ClassVar[Needs] = Needs("none")

    def measure(self, prediction: Prediction, *, over_atoms: OverAtoms) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing."""
        return {}

    def order(self, pool: Pool, *, seed: int) -> Iterator[Pick]:
        """A permutation; the number that decides is uniform in 0..1."""
        lots = np.random.default_rng(seed).random(len(pool))
        for place in np.argsort(-lots):
            if pool.free[place]:
                yield Pick(int(place), float(lots[place]), "random")


METHODS = (Random,)
