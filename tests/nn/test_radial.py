"""Bessel functions and envelope: formulas, smoothness at the cutoff."""

from __future__ import annotations

import math

import pytest
import torch

from bayrace.nn.radial import bessel_basis, envelope


def test_envelope_of_power_two_is_the_documented_polynomial() -> None:
    x = torch.linspace(0, 1, 11, dtype=torch.float64)[:-1]
    expected = 1 - 6 * x**2 + 8 * x**3 - 3 * x**4
    torch.testing.assert_close(envelope(x, 2), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("power", [2, 3, 6])
def test_envelope_meets_zero_smoothly(power: int) -> None:
    x = torch.tensor(1 - 1e-9, dtype=torch.float64, requires_grad=True)
    value = envelope(x, power)
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    (bend,) = torch.autograd.grad(slope, x)
    assert abs(value.item()) < 1e-12
    assert abs(slope.item()) < 1e-12
    assert abs(bend.item()) < 1e-5
    assert envelope(torch.tensor(1.5), power).item() == 0


def test_bessel_basis_values() -> None:
    r = torch.tensor([1.3], dtype=torch.float64)
    basis = bessel_basis(r, cutoff=5.0, count=3, power=2)
    x = 1.3 / 5
    window = 1 - 6 * x**2 + 8 * x**3 - 3 * x**4
    expected = [math.sqrt(2) * math.sin(n * math.pi * x) / x * window for n in (1, 2, 3)]
    torch.testing.assert_close(basis[0], torch.tensor(expected, dtype=torch.float64))
