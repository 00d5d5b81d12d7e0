"""How errors grow away from the data: fitted to the nearer half of them, seen on the farther one.

What a posterior expects far from the data is a law that the data do not hold: errors of a network
that was trained on everything grow more slowly than most posteriors say. So each composition's
structures are put in the order of their distance from the middle, by the features of the network
and without labels. The posterior, with its energy zero, is fitted to most of the nearer half;
errors of the rest and of the farther half then tell to which power of its σ they grow.

Forces take the power of energies. Their own errors follow σ badly at home, and what follows badly
seems hardly to grow: for CHGNet's and SevenNet's forces on rattled crystals the two halves said 0.3
and 0.5, where they grew with 0.4 to 1.0 to four times the rattle of the data. A σ that is too small
far away is the worse mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.calibrate.fit import Powers
from bayrace.core.outputs import Params
from bayrace.core.prediction import Prediction
from bayrace.core.protocols import Model
from bayrace.data.dataset import Dataset, edge_batches
from bayrace.data.frame import Frame
from bayrace.data.labels import label_arrays
from bayrace.data.split import split
from bayrace.likelihood.robust import judged, least_within
from bayrace.models.derivatives import evaluate
from bayrace.posterior.latent import hidden_features, training_features, whitened
from bayrace.potential.potential import Potential

Array = NDArray[np.float64]

ENOUGH = 24
"""Structures below which a power of 1 is taken."""

_GRID = tuple(1.05**k for each in range(31) for k in {each, -each})  # of powers, from 1 outwards
_AT_HOME = 0.3  # of the nearer half, to be compared with the farther one
_REGULARISATION = 0.01  # of the distances, in units of the mean variance of features
_EDGES = 10_000  # of a batch


def error_growth(
    model: Model,
    params: Params,
    data: Dataset,
    fitted: Callable[[Sequence[Frame]], Potential],
    *,
    seed: int,
) -> Powers:
    """Powers of the σ of energies and forces; `fitted` fits a posterior to some frames."""
    if len(data) < ENOUGH:
        return Powers()
    places = _ordered(data, distances(model, params, data))
    near = [data.frames[k] for order in places for k in order[: (len(order) + 1) // 2]]
    far = [data.frames[k] for order in places for k in order[(len(order) + 1) // 2 :]]
    known, home = split(near, valid=_AT_HOME, seed=seed)
    potential = fitted(known)
    raw = potential.predict_frames([*home, *far], uncertainty="energy", calibrated=False)
    power = power_of(raw)
    return Powers(power, power)


@torch.no_grad()
def distances(model: Model, params: Params, data: Dataset) -> Array:
    """How far each structure is from the middle of all, by the mean over its atoms; 1 is usual."""
    seen = training_features(model, params, data, lambda _: None)
    centre, whitening = whitened(seen, _REGULARISATION)
    found = []
    for batch, _ in edge_batches(data, like=params, edges=_EDGES):
        hidden = hidden_features(evaluate(model, params, batch, forces=False)).double()
        parts = torch.split(hidden, list(batch.species_counts))
        atoms = [
            ((part - middle) @ white).square().sum(-1)
            for part, middle, white in zip(parts, centre, whitening, strict=True)
        ]
        found.append(batch.averaged(torch.cat(atoms)))
    return torch.cat(found).numpy(force=True)


def power_of(batches: Iterable[tuple[Sequence[Frame], Prediction]]) -> float:
    """To which power of σ the errors of energies grow, in raw predictions.

    The one nearest to 1 that they do not contradict; each composition has a scale of its own.
    """
    square, variance, kind = [], [], []
    for frames, prediction in batches:
        counts = np.array([len(frame.numbers) for frame in frames])
        error = label_arrays(frames).energy - prediction.energy.mean.double().numpy(force=True)
        square.append((error / counts) ** 2)
        variance.append(prediction.energy.total.double().numpy(force=True) / counts**2)
        kind += [_kind(frame) for frame in frames]
    errors, expected, kinds = np.concatenate(square), np.concatenate(variance), np.array(kind)
    known = np.isfinite(errors) & (expected > 0)
    if not errors[known].any():
        return 1.0
    groups = [np.flatnonzero(known & (kinds == each)) for each in np.unique(kinds[known])]

    def loss(power: float) -> float:
        found = [judged(errors[own], expected[own] ** power)[0] * own.size for own in groups]
        return float(sum(found) / known.sum())

    return least_within(_GRID, [loss(power) for power in _GRID], count=int(known.sum()))


def _kind(frame: Frame) -> str:
    """Its composition, whatever its size."""
    numbers, counts = np.unique(frame.numbers, return_counts=True)
    counts = counts // np.gcd.reduce(counts)
    return " ".join(f"{z}:{n}" for z, n in zip(numbers, counts, strict=True))


def _ordered(data: Dataset, distance: Array) -> list[list[int]]:
    """Places of the structures of each kind, the nearest first."""
    order = np.argsort(distance, kind="stable")
    kinds: dict[str, list[int]] = {}
    for place in order.tolist():
        kinds.setdefault(_kind(data.frames[place]), []).append(place)
    return list(kinds.values())
