"""Scales of an error estimate from validation errors, of all atoms and of each element."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayrace.likelihood.robust import Shares, judged, leaning, robust_scale, shares
from bayrace.posterior.held_out import Errors, HeldOut

Array = NDArray[np.float64]


def scaled(errors: Errors | None) -> Shares | None:
    """How much of the errors is ignorance, and how much the network's noise; None: neither."""
    if errors is None:
        return None
    found = shares(errors.square, errors.noise, errors.shape, count=errors.structures)
    return found if found.ignorance > 0 else None


def scaled_forces(held: HeldOut, kinds: int) -> tuple[Tensor | None, Shares | None]:
    """c of every element, (Z,), and the share of the noise."""
    relative = None if held.forces is None else _by_element(held.forces, kinds)
    if held.forces is None or relative is None:
        return None, None
    found = scaled(_with_shape(held.forces, relative))
    if found is None:
        return None, None
    return torch.from_numpy(found.ignorance * relative), found


def _by_element(errors: Errors, kinds: int) -> Array | None:
    """c of each element over that of all, (Z,); None where there are no errors."""
    size = np.sqrt(errors.square / errors.shape)
    common = robust_scale(size)
    if not common > 0:
        return None
    relative = np.ones(kinds)
    for element in range(kinds):
        own = size[errors.element == element]
        if own.any():
            relative[element] = (leaning(robust_scale(own), common, count=own.size) / common) ** 2
    return relative


def _with_shape(errors: Errors, relative: Array) -> Errors:
    return errors._replace(shape=errors.shape * relative[errors.element])


def unlikeliness(held: HeldOut) -> float:
    """How unlikely the errors of forces are, or of energies where there are no forces."""
    errors = held.energy if held.forces is None else held.forces
    if errors is None:
        return math.inf
    relative = _by_element(errors, int(errors.element.max()) + 1)
    if relative is None:
        return math.inf
    return judged(errors.square, _with_shape(errors, relative).shape)[0]
