"""The contracted product against the outer product it stands for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayrace.nn.linear import linear
from bayrace.nn.mixing import Block, Mixing, mix


def outer_product_linear(x: Tensor, one_body: Tensor, weight: Tensor) -> Tensor:
    """The product written out: B = v ⊗ a¹ of each atom, then a linear map with W (U, V, C)."""
    u, v, c = weight.shape
    product = torch.einsum("nu,ndv->nduv", one_body, x).flatten(-2)  # (N, D, U·V)
    return product @ weight.reshape(u * v, c) * (1 / math.sqrt(u * v))


def test_contracted_product_equals_the_outer_product() -> None:
    """Values and gradients of every input, to 1e-12."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        value = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return value.requires_grad_()

    counts = (3, 0, 4)
    species = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    x, table, weight = draw(7, 5, 6), draw(3, 9), draw(9, 6, 4)
    mixing = Mixing((Block(5, 6, 4, 1 / math.sqrt(9 * 6)),))
    fast = mix(mixing, x.flatten(1), table @ weight.flatten(1), counts).reshape(7, 5, 4)
    slow = outer_product_linear(x, table[species], weight)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn(slow.shape, generator=generator, dtype=torch.float64)
    inputs = (x, table, weight)
    quick = torch.autograd.grad((fast * cotangent).sum(), inputs)
    full = torch.autograd.grad((slow * cotangent).sum(), inputs)
    for one, other in zip(quick, full, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_linear_keeps_the_variance() -> None:
    x, weight = torch.randn(4000, 50), torch.randn(50, 40)
    assert abs(linear(x, weight).var().item() - 1) < 0.1
