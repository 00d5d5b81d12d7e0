"""Farthest-point sampling: each structure is the one least like all that are known.

Distances are Euclidean between descriptors (see `descriptors`): sorted distances of atoms where all
structures have the same composition, features of the last layer otherwise. It asks no posterior.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from bayrace.core.prediction import Prediction
from bayrace.select.acquire.descriptors import nearest
from bayrace.select.acquire.interface import AcquisitionError, Needs, OverAtoms, Pick, Pool, best


@dataclass(frozen=True)
class Farthest:
    """Least like any known structure; needs no uncertainty.

    Seeded with the training set, or with the mean of the pool where there is none.
    """

    name: ClassVar[str] = "farthest"
    needs: ClassVar[Needs] = Needs("none", descriptors=True)

    def measure(self, prediction: Prediction, *, over_atoms: OverAtoms) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing but the descriptors."""
        return {}

    def order(self, pool: Pool, *, seed: int) -> Iterator[Pick]:  # noqa: ARG002
        """The largest distance to the nearest known or chosen structure first."""
        points, known = pool.descriptors, pool.known_descriptors
        if points is None:
            raise AcquisitionError(
                "farthest: these structures have no descriptor: their compositions differ, and "
                "this model's energies are not linear in a last layer; choose by bald-ef or random"
            )
        first = known is None or not len(known)
        start = points.mean(0, keepdims=True) if known is None or first else known
        distance = nearest(points, start)
        while (index := best(pool, distance)) is not None:
            yield Pick(index, float(distance[index]), "distance")
            taken = nearest(points, points[index : index + 1])
            distance = taken if first else np.minimum(distance, taken)
            first = False


METHODS = (Farthest,)
