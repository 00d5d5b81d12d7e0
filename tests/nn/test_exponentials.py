"""Compiled covariances of forces against their definition by matrix exponentials."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bayrace.nn import covariance as definitions
from bayrace.nn import exponentials, spreads
from bayrace.nn.covariance import covariance, log_determinant, mahalanobis

REAL = torch.float64


def heads() -> tuple[Tensor, Tensor]:
    """Numbers with degenerate, tiny and clamped cases, and errors."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(60, 6, generator=generator, dtype=REAL) * 2
    numbers[:3, 1:] = 0  # all eigenvalues alike
    numbers[3:6, 1:] *= 1e-6
    numbers[6, 1:] = torch.tensor([0, 0, 1.0, 0, 0], dtype=REAL)  # two alike
    numbers[7, 0], numbers[8, 0] = 50.0, -60.0  # outside the range
    return numbers, torch.randn(60, 3, generator=generator, dtype=REAL)


def by_definition(numbers: Tensor, errors: Tensor) -> Tensor:
    return definitions._quadratic(numbers, errors)


def gradients(function: object, dtype: torch.dtype) -> tuple[Tensor, ...]:
    numbers, errors = (each.to(dtype).requires_grad_() for each in heads())
    return torch.autograd.grad(function(numbers, errors).log().sum(), (numbers, errors))  # type: ignore[operator]


@pytest.mark.parametrize(("dtype", "tolerance"), [(REAL, 1e-8), (torch.float32, 1e-5)])
def test_values_and_gradients(dtype: torch.dtype, tolerance: float) -> None:
    numbers, errors = (each.to(dtype) for each in heads())
    assert exponentials.available(numbers)
    found = mahalanobis(numbers, errors, "equivariant").double()
    expected = by_definition(numbers.double(), errors.double())
    torch.testing.assert_close(found, expected, rtol=1e-12 if dtype == REAL else 1e-5, atol=0)
    one = gradients(lambda n, e: mahalanobis(n, e, "equivariant"), dtype)
    for value, other in zip(one, gradients(by_definition, REAL), strict=True):
        torch.testing.assert_close(value.double(), other, rtol=tolerance, atol=tolerance)


def test_covariances() -> None:
    numbers, _ = heads()
    matrix = definitions._log_matrix(numbers)
    expected = torch.linalg.matrix_exp(matrix)
    found = covariance(numbers, "equivariant")
    size = expected.abs().amax((-2, -1), keepdim=True)
    torch.testing.assert_close(found / size, expected / size, rtol=0, atol=1e-12)
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(log_determinant(numbers, "equivariant"), trace)


def test_higher_derivatives() -> None:
    numbers, errors = (each[20:24].clone().requires_grad_() for each in heads())

    def form(first: Tensor, second: Tensor) -> Tensor:
        return mahalanobis(first, second, "equivariant")

    assert torch.autograd.gradcheck(form, (numbers, errors))
    assert torch.autograd.gradgradcheck(form, (numbers, errors))
    slope = torch.func.grad(lambda n: form(n, errors.detach()).sum())(numbers.detach())
    torch.testing.assert_close(
        slope, torch.autograd.grad(form(numbers, errors).sum(), numbers)[0], rtol=1e-10, atol=1e-10
    )


def test_eigenvalues() -> None:
    numbers, _ = heads()
    several = covariance(numbers, "equivariant").numpy()
    several[9] = 0.0
    several[10] = np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])  # singular
    several[11] *= 1e-200
    found = spreads.spreads(several).eigenvalues
    expected = np.linalg.eigvalsh(several)[:, ::-1]
    size = np.maximum(expected[:, :1], 1e-300)
    np.testing.assert_allclose(found / size, expected / size, rtol=0, atol=1e-14)
    assert (np.diff(found, axis=1) <= 0).all()


def test_spreads_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    several = covariance(heads()[0], "equivariant").numpy()
    several[9] = 0.0
    assert spreads.compiled()
    found = spreads.spreads(several)
    monkeypatch.setenv("BAYRACE_KERNEL", "plain")
    assert not spreads.compiled()
    for value, expected in zip(found, spreads.spreads(several), strict=True):
        size = np.sqrt(several.max(axis=(1, 2)))  # small eigenvalues have the errors of large ones
        if value is found.eigenvalues:
            size = size**2
        size = np.maximum(size, 1e-300).reshape(-1, *[1] * (value.ndim - 1))
        np.testing.assert_allclose(value / size, expected / size, rtol=0, atol=1e-13)
