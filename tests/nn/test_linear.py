"""The contracted product against the outer product it stands for."""

from __future__ import annotations

import torch

from bayrace.nn.linear import contract_product, linear, outer_product_linear, species_linear


def test_contracted_product_equals_the_outer_product() -> None:
    """Values and gradients of every input, to 1e-12."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        value = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return value.requires_grad_()

    counts = (3, 0, 4)
    species = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    x, table, weight = draw(7, 5, 6), draw(3, 9), draw(9, 6, 4)
    fast = species_linear(x, contract_product(weight, table), counts)
    slow = outer_product_linear(x, table[species], weight)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn(slow.shape, generator=generator, dtype=torch.float64)
    inputs = (x, table, weight)
    quick = torch.autograd.grad((fast * cotangent).sum(), inputs)
    full = torch.autograd.grad((slow * cotangent).sum(), inputs)
    for one, other in zip(quick, full, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_species_linear_uses_each_elements_matrix() -> None:
    x = torch.ones(3, 1, 2, dtype=torch.float64)
    weight = torch.stack([torch.full((2, 1), value, dtype=torch.float64) for value in (1.0, 10.0)])
    assert species_linear(x, weight, (1, 2)).flatten().tolist() == [2.0, 20.0, 20.0]


def test_linear_keeps_the_variance() -> None:
    x, weight = torch.randn(4000, 50), torch.randn(50, 40)
    assert abs(linear(x, weight).var().item() - 1) < 0.1
