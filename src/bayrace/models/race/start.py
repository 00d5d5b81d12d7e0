"""Initial weights: a draw, made smaller where the data show that it is unlucky.

A ⊗ A squares what a draw makes too large, in every layer anew: of eight draws for ethanol the first
forces of a network of three layers were 3 to 1800 eV/Å, and training from the worst of them
diverged. One pass over some training structures, layer by layer, sees to it (as LSUV does, Mishkin
2016, but only where something is large): what a layer adds linearly to an irrep, and what it adds
by A ⊗ A, has a root mean square of at most LARGEST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.models.race.layout import LayerLayout
from bayrace.models.race.maps import split

SCALARS = "readout.scalars"  # of a layer: weights of the energy (column 0) and invariant heads
GATES = "readout.gates"  # of a layer: of quadrupoles of noise heads
QUADRUPOLES = "readout.quadrupole"  # of a layer: of 2e heads, which are all noise
NOISE_GAIN = 0.1  # noise heads start flat, near the scale of the training forces
LARGEST = 2.0  # root mean square of what a layer adds to the features of an irrep

Layer = Callable[[LayerLayout, Mapping[str, Tensor], Tensor | None], Tensor]
"""From the features of the layer before, (N, width), and a layer's own weights to its features."""


def drawn(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Params:
    """Normal weights, float64, in the order of `shapes`."""
    generator = torch.Generator().manual_seed(seed)
    params = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * _gain(name)
        for name, shape in shapes.items()
    }
    for name, value in params.items():
        if name.endswith(SCALARS):
            value[:, 1:] *= NOISE_GAIN  # all columns but the energy belong to noise heads
    return params


@torch.no_grad()
def rescaled(layout: Sequence[LayerLayout], params: Params, layer_of: Layer) -> Params:
    """The same weights, smaller where they make large features; `layer_of` knows the structures."""
    result = dict(params)
    features: Tensor | None = None
    for layer in layout:
        own = {k.removeprefix(f"{layer.name}."): v for k, v in params.items() if _of(layer, k)}
        for irrep, value in split(layer_of(layer, _straight(own), features), layer.outputs).items():
            for name in (f"product.{irrep}", f"skip.{irrep}"):
                if name in own:
                    own[name] = own[name] * _shrink(value)
        if layer.product:
            curved = layer_of(layer, own, features) - layer_of(layer, _straight(own), features)
            for irrep, value in split(curved, layer.outputs).items():
                name = f"contract.{irrep}"
                if name in own:
                    own[name] = own[name] * _shrink(value)
        features = layer_of(layer, own, features)
        result |= {f"{layer.name}.{name}": value for name, value in own.items()}
    return result


def _of(layer: LayerLayout, name: str) -> bool:
    return name.startswith(f"{layer.name}.")


def _straight(own: Params) -> Params:
    """The weights of a layer without A ⊗ A."""
    return {k: torch.zeros_like(v) if k.startswith("contract.") else v for k, v in own.items()}


def _shrink(value: Tensor) -> float:
    """The factor, at most 1, that leaves no more than LARGEST."""
    size = float(value.double().square().mean().sqrt())
    return min(1.0, LARGEST / size) if size > 0 else 1.0


def _gain(name: str) -> float:
    """Initial standard deviation of a parameter: features and energies start of order 1."""
    part = name.removeprefix(name.split(".")[0] + ".")
    gains = {"product": 0.5, "skip": 0.7, "contract": 0.2, SCALARS: 0.3, GATES: NOISE_GAIN}
    return next((gain for prefix, gain in gains.items() if part.startswith(prefix)), 1.0)
