"""Pieces of posteriors around any weights that were fitted to nothing, for examples of methods."""

from __future__ import annotations

import torch

from bayrace.core.outputs import Params
from bayrace.core.protocols import LinearModel
from bayrace.posterior.gaussian.last_layer import LastLayer, last_layer_places

SAMPLES = 8
STEP = 0.05
"""Width of the posteriors; weights are of the order of 1."""


def moved(params: Params, seed: int) -> Params:
    """The weights a step away, in a direction by the seed."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value
        + STEP * torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
        for name, value in params.items()
    }


def last_layer(model: LinearModel, params: Params) -> LastLayer:
    """A Gaussian over the last layer."""
    places = last_layer_places(model, params)
    size = len(places)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return LastLayer(params, places, (normal * STEP / size**0.5).to(places.device))
