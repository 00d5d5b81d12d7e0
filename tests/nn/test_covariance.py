"""Covariances: inverse and determinant by closed form, rotation, gradients at degeneracy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayrace.nn.covariance import (
    FORCES_NUMBERS,
    STRESS_NUMBERS,
    CovarianceForm,
    covariance,
    covariance_from_mandel,
    log_determinant,
    mahalanobis,
    shift_log_scale,
    to_mandel,
)
from bayrace.nn.harmonics import spherical_harmonics

FORMS: list[tuple[CovarianceForm, int]] = [
    ("equivariant", FORCES_NUMBERS),
    ("cholesky", FORCES_NUMBERS),
    ("equivariant", STRESS_NUMBERS["equivariant"]),
    ("cholesky", STRESS_NUMBERS["cholesky"]),
]


def draw(count: int, size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("form", "size"), FORMS)
def test_closed_forms_equal_dense_algebra(form: CovarianceForm, size: int) -> None:
    numbers = draw(7, size)
    matrix = covariance(numbers, form)
    residual = draw(7, matrix.shape[-1], seed=1)
    inverse = torch.linalg.inv(matrix)
    expected = torch.einsum("na,nab,nb->n", residual, inverse, residual)
    torch.testing.assert_close(mahalanobis(numbers, residual, form), expected, rtol=1e-8, atol=0)
    torch.testing.assert_close(
        log_determinant(numbers, form), torch.logdet(matrix), rtol=1e-9, atol=1e-9
    )
    assert torch.linalg.eigvalsh(matrix).min() > 0


def test_log_determinant_is_three_times_the_level() -> None:
    numbers = draw(4, FORCES_NUMBERS)
    torch.testing.assert_close(log_determinant(numbers, "equivariant"), 3 * numbers[:, 0])


def test_quadrupole_numbers_turn_with_the_structure() -> None:
    """Q built from Y_2(r) must turn as r does: Σ(R r) = R Σ(r) Rᵀ."""
    unit = draw(1, 3)
    unit = unit / unit.norm()
    turn = torch.linalg.qr(draw(3, 3, seed=5))[0]

    def at(direction: torch.Tensor) -> torch.Tensor:
        numbers = torch.cat([torch.zeros(1, 1), 0.3 * spherical_harmonics(direction, 2)[:, 4:]], -1)
        return covariance(numbers.double(), "equivariant")[0]

    torch.testing.assert_close(at(unit @ turn.T), turn @ at(unit) @ turn.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("form", "size"), FORMS)
def test_gradients_are_right(form: CovarianceForm, size: int) -> None:
    numbers = (0.5 * draw(2, size)).requires_grad_()
    dimension = covariance(numbers, form).shape[-1]
    residual = draw(2, dimension, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda n, r: mahalanobis(n, r, form), (numbers, residual))
    assert torch.autograd.gradcheck(lambda n: log_determinant(n, form), (numbers,))


def test_gradient_is_finite_where_eigenvalues_coincide() -> None:
    numbers = torch.zeros(1, FORCES_NUMBERS, dtype=torch.float64, requires_grad=True)
    loss = mahalanobis(numbers, torch.tensor([[1.0, 2.0, 3.0]]).double(), "equivariant").sum()
    (gradient,) = torch.autograd.grad(loss, numbers)
    assert gradient.isfinite().all()
    assert gradient.abs().min() > 0  # every number is reached


@pytest.mark.parametrize(("form", "size"), FORMS)
def test_log_scale_multiplies_the_covariance(form: CovarianceForm, size: int) -> None:
    numbers = draw(3, size)
    scaled = covariance(shift_log_scale(numbers, np.log(3.0), form), form)
    torch.testing.assert_close(scaled, 9 * covariance(numbers, form), rtol=1e-4, atol=1e-5)


def test_extreme_heads_stay_finite() -> None:
    for value in (-1e4, 1e4):
        numbers = torch.full((1, FORCES_NUMBERS), value)
        for form in ("equivariant", "cholesky"):
            finite = covariance(numbers * (1 if form == "equivariant" else 1e-3), form)
            assert finite.isfinite().all()


def test_mandel_vectors_have_the_tensors_norm() -> None:
    voigt = draw(1, 6)[0]
    xx, yy, zz, yz, xz, xy = voigt
    tensor = torch.stack([xx, xy, xz, xy, yy, yz, xz, yz, zz])
    torch.testing.assert_close(to_mandel(voigt).norm(), tensor.norm())
    eye = torch.eye(6, dtype=torch.float64)
    back = covariance_from_mandel(eye).diagonal()
    torch.testing.assert_close(back, torch.tensor([1, 1, 1, 0.5, 0.5, 0.5], dtype=torch.float64))
