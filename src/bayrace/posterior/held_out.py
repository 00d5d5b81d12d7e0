"""Validation errors beside the variances that a posterior and the noise heads give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.core.protocols import ClosedForm, Model
from bayrace.data.dataset import Dataset, edge_batches
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, noise, noise_spec_of
from bayrace.nn.covariance import to_mandel

Array = NDArray[np.float64]

_EDGES = 10_000  # of a batch


class Errors(NamedTuple):
    """Validation errors of one quantity, (n,) each."""

    square: Array
    noise: Array  # variances that the network predicts
    shape: Array  # variances of the posterior whose scales are 1
    element: NDArray[np.int64]  # index of the atom's; 0 where there is none
    structures: int  # they come from


class HeldOut(NamedTuple):
    """Errors by quantity; None where no label is known."""

    energy: Errors | None
    forces: Errors | None
    stress: Errors | None


def held_out(
    candidates: Sequence[ClosedForm],
    model: Model,
    params: Params,
    valid: Dataset,
    lambdas: Lambdas,
    chosen: Sequence[int] | None = None,
) -> list[HeldOut]:
    """Errors on the validation set, or on some of its frames, beside what each posterior expects.

    They give variances whose scales are still 1, of one network, which is evaluated once.
    """
    parts: list[dict[str, list[Errors]]] = [
        {"energy": [], "forces": [], "stress": []} for _ in candidates
    ]
    stress = any(frame.stress is not None and frame.pbc.all() for frame in valid.frames)
    for batch, labels in edge_batches(valid, like=params, edges=_EDGES, chosen=chosen):
        with torch.no_grad():
            outputs = evaluate(model, params, batch, stress=stress)
            own = noise(outputs, batch, noise_spec_of(model), lambdas)
        element = batch.species[:, None].expand(-1, 3)
        none = batch.species.new_zeros(batch.n_structures)
        for bare, part in zip(candidates, parts, strict=True):
            with torch.no_grad():
                spread = bare.spread(model, params, batch, outputs, forces=True, stress=stress)
            part["energy"].append(
                _known(outputs.energy - labels.energy, own.energy, spread.energy, none)
            )
            part["forces"].append(
                _known(outputs.forces - labels.forces, own.forces, spread.forces, element)
            )
            if outputs.stress is not None:
                error = to_mandel(outputs.stress - labels.stress)  # all directions are alike there
                part["stress"].append(
                    _known(error, own.stress, spread.stress, none[:, None].expand(-1, 6))
                )
    return [HeldOut(**{name: _joined(each) for name, each in part.items()}) for part in parts]


def _known(error: Tensor, own: Tensor | None, spread: Tensor | None, element: Tensor) -> Errors:
    """Those errors (n,) or (n, d) that are known, with variances of no direction."""
    assert spread is not None
    square = error.double().square()
    known = ~square.isnan()
    shape = _levels(spread, square)[known]
    predicted = torch.zeros_like(square) if own is None else _levels(own, square)
    return Errors(
        square[known].numpy(force=True),
        predicted[known].numpy(force=True),
        shape.numpy(force=True),
        element[known].numpy(force=True),
        int(known.reshape(len(known), -1).any(-1).sum()),
    )


def _levels(variance: Tensor, like: Tensor) -> Tensor:
    """Variances as they are, or the mean over components of covariances, of the shape of `like`."""
    if variance.shape == like.shape:
        return variance.double()
    diagonal = _component_variances(variance.double())
    return diagonal.mean(-1, keepdim=True).expand(like.shape)


def _component_variances(covariance: Tensor) -> Tensor:
    """Variances (..., d) of components; of a stress those of Mandel's, which count shear twice."""
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    return to_mandel(to_mandel(diagonal)) if diagonal.shape[-1] == 6 else diagonal


def _joined(parts: list[Errors]) -> Errors | None:
    if not any(part.square.size for part in parts):
        return None
    return Errors(
        np.concatenate([part.square for part in parts]),
        np.concatenate([part.noise for part in parts]),
        np.concatenate([part.shape for part in parts]),
        np.concatenate([part.element for part in parts]),
        sum(part.structures for part in parts),
    )
