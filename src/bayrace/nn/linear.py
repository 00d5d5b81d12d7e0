"""Linear maps of equivariant features: plain, and with one matrix per element.

Features are dictionaries {irrep: (N, 2l + 1, C)}. Weights are drawn from a standard normal and
divided by √(fan-in) when applied, so that one learning rate suits every layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayrace.nn.irreps import Irrep

Features = dict[Irrep, Tensor]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """(..., K) times (K, C) / √K."""
    return x @ (weight * (1 / math.sqrt(weight.shape[-2])))


def species_linear(x: Tensor, weight: Tensor, counts: tuple[int, ...]) -> Tensor:
    """One matrix per element on atoms sorted by element.

    Args:
        x: (N, D, K), atoms sorted by element.
        weight: (Z, K, C), already scaled.
        counts: atoms of each element, summing to N.

    Returns:
        (N, D, C)
    """
    if len(counts) == 1:
        return x @ weight[0]
    parts = torch.split(x, list(counts))
    matrices = weight.unbind(0)
    return torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])


def contract_product(weight: Tensor, one_body: Tensor) -> Tensor:
    """The restratified product Linear(v ⊗ a¹) as one matrix per element.

    M_vw(Z) = Σ_u W_uvw a¹_u(Z) / √(U V): exact, since a¹ depends on the element only.

    Args:
        weight: W, (U, V, C).
        one_body: a¹ of each element, (Z, U).

    Returns:
        (Z, V, C)
    """
    u, v, c = weight.shape
    return (one_body @ weight.reshape(u, v * c) * (1 / math.sqrt(u * v))).reshape(-1, v, c)


def outer_product_linear(x: Tensor, one_body: Tensor, weight: Tensor) -> Tensor:
    """The same product written out, B = v ⊗ a¹ then a linear map; the reference in tests.

    Args:
        x: (N, D, V).
        one_body: a¹ of each atom, (N, U).
        weight: W, (U, V, C).
    """
    u, v, c = weight.shape
    product = torch.einsum("nu,ndv->nduv", one_body, x).flatten(-2)  # (N, D, U·V)
    return product @ weight.reshape(u * v, c) * (1 / math.sqrt(u * v))
