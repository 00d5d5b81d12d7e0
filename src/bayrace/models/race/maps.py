"""The linear maps of a layer: which numbers each of them takes where.

Features are flat rows (N, width): irrep after irrep, component after component, channels inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.models.race.layout import LayerLayout
from bayrace.models.race.spec import RaceSpec
from bayrace.nn.irreps import Channels, Irrep
from bayrace.nn.mixing import Block, Mixing

Features = dict[Irrep, Tensor]
"""Features by irrep, each (N, 2l + 1, C)."""


class LayerMaps(NamedTuple):
    """Every map of one layer; None where the layer has no such step."""

    up: Mixing  # features before the convolution
    down: Mixing  # messages, from all paths to the channels of the layer
    species: Mixing  # the product with a¹, one matrix per element
    skip: Mixing  # the self-interaction, one matrix per element
    contract: Mixing | None  # couplings of A ⊗ A
    folded: Mixing  # `down` and `species` in one, for fixed weights


def layer_maps(spec: RaceSpec, layer: LayerLayout) -> LayerMaps:
    """The maps of a layer, with the factors that keep features of order 1."""
    inputs, convolved, outputs = layer.inputs, layer.convolved, layer.outputs
    messages = {irrep: layer.message_channels(irrep) for irrep in convolved}
    neighbours = spec.mean_neighbours
    norm = math.sqrt(neighbours) if spec.neighbour_norm == "sqrt" else neighbours
    contract = None
    if layer.product:
        product = layer.product
        couplings = {
            irrep: len(product.couplings(irrep)) * outputs[irrep] for irrep in product.outputs
        }
        contract = _mixing(couplings, outputs)
    return LayerMaps(
        up=_mixing(inputs, inputs),
        down=_mixing(messages, convolved, factor=1 / norm),
        species=_mixing(convolved, convolved, factor=1 / math.sqrt(spec.features)),
        skip=_mixing(inputs, convolved),
        contract=contract,
        folded=Mixing(tuple(Block(i.dim, messages[i], c, 1.0) for i, c in convolved.items())),
    )


def _mixing(before: Channels, after: Channels, *, factor: float = 1.0) -> Mixing:
    """A block per irrep of either side, times factor / √(fan-in); 0 where a side lacks it."""
    irreps = sorted({*before, *after}, key=lambda irrep: (irrep.l, -irrep.p))
    return Mixing(
        tuple(
            Block(
                irrep.dim,
                before.get(irrep, 0),
                after.get(irrep, 0),
                factor / math.sqrt(max(1, before.get(irrep, 0))),
            )
            for irrep in irreps
        )
    )


def split(features: Tensor, channels: Channels) -> Features:
    """Views of flat features by irrep."""
    widths = [irrep.dim * count for irrep, count in channels.items()]
    return {
        irrep: part.reshape(*part.shape[:-1], irrep.dim, count)
        for (irrep, count), part in zip(
            channels.items(), torch.split(features, widths, dim=-1), strict=True
        )
    }


def join(features: Features) -> Tensor:
    """Flat features, in the order of the dictionary."""
    if len(features) == 1:
        return next(iter(features.values())).flatten(-2)
    return torch.cat([value.flatten(-2) for value in features.values()], dim=-1)


def select(features: Tensor, channels: Channels, wanted: Channels) -> Tensor:
    """Flat features of some irreps only."""
    if tuple(wanted) == tuple(channels):
        return features
    views = split(features, channels)
    return join({irrep: views[irrep] for irrep in wanted})


def flat(own: Mapping[str, Tensor], name: str, irreps: Iterable[Irrep]) -> Tensor:
    """The matrices of a map one after another, (1, Σ K · C), or (M, Σ K · C) of members."""
    flat = torch.cat([own[f"{name}.{irrep}"].flatten(-2) for irrep in irreps], dim=-1)
    return flat.reshape(-1, flat.shape[-1])


def scoped(params: Params, name: str) -> dict[str, Tensor]:
    """Parameters of one layer under their own names."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): value for key, value in params.items() if key.startswith(prefix)
    }
