"""Batch-aware selection: each structure counts for what the ones chosen before do not tell.

`diverse` maximises log det(C + Σ φφᵀ) greedily, with φ the last hidden activations of a structure
and C those of the training set: the information that energies of the whole batch give about the
last layer's weights. `bald-diverse` multiplies the BALD of a structure by the share of it that is
new: the conditional variance of its standardised features given those of the chosen ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from bayrace.core.prediction import Prediction
from bayrace.select.acquire.bald import ENERGY, FORCES, energy_information, force_information
from bayrace.select.acquire.interface import (
    AcquisitionError,
    Array,
    Needs,
    OverAtoms,
    Pick,
    Pool,
    best,
    require_spread,
)

_FLOOR = 1e-6  # ς in mean eigenvalues: what the features of no structure say of a direction
_NOISE = 0.01  # of standardised features: structures that differ by less are the same


@dataclass(frozen=True)
class Diverse:
    """Most informative together, by last-layer features; needs no uncertainty."""

    name: ClassVar[str] = "diverse"
    needs: ClassVar[Needs] = Needs("none", features=True)

    def measure(self, prediction: Prediction, *, over_atoms: OverAtoms) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing but the features."""
        return {}

    def order(self, pool: Pool, *, seed: int) -> Iterator[Pick]:  # noqa: ARG002
        """The largest gain ½ log(1 + φᵀC⁻¹φ), nats, first; C grows by each."""
        features = _features(pool, "diverse")
        known = pool.known_features
        if known is None:
            known = np.zeros((0, features.shape[1]))
        for index, leverage in greedy(whitened(features, known), pool):
            yield Pick(index, 0.5 * float(np.log1p(leverage)), "information")


@dataclass(frozen=True)
class BaldDiverse:
    """As bald-ef, less what the chosen ones tell already."""

    name: ClassVar[str] = "bald-diverse"
    needs: ClassVar[Needs] = Needs("full", features=True)

    def measure(self, prediction: Prediction, *, over_atoms: OverAtoms) -> dict[str, Tensor]:
        """The information in energies and forces."""
        return {
            FORCES: force_information(prediction, over_atoms=over_atoms),
            ENERGY: energy_information(prediction),
        }

    def order(self, pool: Pool, *, seed: int) -> Iterator[Pick]:  # noqa: ARG002
        """The largest product first; energies and forces count alike in the mean of the pool."""
        columns = [pool.columns[name] for name in (FORCES, ENERGY)]
        require_spread(columns, "bald-diverse")
        information = sum((column / max(column.mean(), 1e-300) for column in columns), np.zeros(1))
        points = _standardised(_features(pool, "bald-diverse"))
        for index, share in greedy(points, pool, weights=information / 2, noise=_NOISE**2):
            yield Pick(index, share, "bald × new")


METHODS = (Diverse, BaldDiverse)


def greedy(
    points: Array, pool: Pool, *, weights: Array | None = None, noise: float = 1.0
) -> Iterator[tuple[int, float]]:
    """Free structures with the largest weight × variance left, which is x·x to begin with.

    `points` (P, D) are those of a linear model with unit prior; a chosen one is measured with
    variance `noise`, and takes from the others what that tells about them.
    """
    factor = np.ones(len(points)) if weights is None else weights
    variance = np.einsum("pd,pd->p", points, points)
    directions = np.zeros((len(points), 0))  # (P, chosen): covariances with what was measured
    while (index := best(pool, factor * variance)) is not None:
        yield index, float(factor[index] * variance[index])
        covariance = points @ points[index] - directions @ directions[index]
        new = covariance / np.sqrt(variance[index] + noise)
        directions = np.column_stack([directions, new])
        variance = np.maximum(variance - new**2, 0.0)


def whitened(features: Array, known: Array) -> Array:
    """Features (P, D) in which C = Σ_known φφᵀ + ςI is the unit matrix."""
    everything = known if len(known) else features
    gram = everything.T @ everything
    floor = _FLOOR * np.trace(gram) / len(gram)
    gram = gram if len(known) else np.zeros_like(gram)
    values, vectors = np.linalg.eigh(gram)
    found: Array = features @ (vectors / np.sqrt(np.maximum(values, 0.0) + max(floor, 1e-300)))
    return found


def _standardised(features: Array) -> Array:
    """Centred and of unit length, so that products are correlations of structures."""
    centred = features - features.mean(0)
    spread = centred.std(0)
    scaled = centred / np.where(spread > 1e-9 * spread.max(initial=1e-300), spread, np.inf)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit: Array = scaled / np.where(length > 0, length, 1.0)
    return unit


def _features(pool: Pool, name: str) -> Array:
    if pool.features is None:
        raise AcquisitionError(
            f"{name}: this model's energies are not linear in a last layer (activation: relu), "
            "whose features it needs; choose by bald-ef, variance or farthest"
        )
    return pool.features
