"""Covariance matrices from a network's numbers: exp of a symmetric matrix, or Cholesky factors.

The equivariant form is Σ = exp(kI + Q) with a scalar k and a traceless symmetric Q (one 2e irrep):
it rotates with the structure, log det Σ = 3k, and Σ⁻¹ = exp(-kI - Q) needs no inversion. The
Cholesky form (the paper's) reads six invariants, so its Σ does NOT rotate with the structure.

Stress is handled in Mandel order (xx, yy, zz, √2 yz, √2 xz, √2 xy), where rotations are orthogonal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayrace.core.noise import CovarianceForm
from bayrace.nn import exponentials
from bayrace.nn.tables import constant

LOG_VARIANCE_RANGE = (-30.0, 20.0)
"""Log-variances are clamped here: σ between 3e-7 and 2e4 eV, eV/Å or eV/Å³."""
ANISOTROPY_LIMIT = 4.0
"""Frobenius norm that log-anisotropies approach but do not pass: σ ratios up to about 17."""
CHOLESKY_JITTER = 1e-6
"""ε in Σ = LLᵀ + εI, eV²/Å² for forces."""

_LIMITS = (*LOG_VARIANCE_RANGE, ANISOTROPY_LIMIT)

FORCES_NUMBERS = 6
STRESS_NUMBERS: dict[CovarianceForm, int] = {"equivariant": 12, "cholesky": 21}


def clamp_log_variance(value: Tensor) -> Tensor:
    """Keep log-variances inside LOG_VARIANCE_RANGE."""
    return value.clamp(*LOG_VARIANCE_RANGE)


def covariance(numbers: Tensor, form: CovarianceForm) -> Tensor:
    """Covariance (..., d, d), d = 3 for 6 numbers and 6 for stress heads."""
    if form == "cholesky":
        return _from_factor(numbers)
    learning = torch.is_grad_enabled() and numbers.requires_grad
    if numbers.shape[-1] == FORCES_NUMBERS and not learning and exponentials.available(numbers):
        return exponentials.exponential(numbers, _LIMITS)
    return _exponential(_log_matrix(numbers))


def mahalanobis(numbers: Tensor, residual: Tensor, form: CovarianceForm) -> Tensor:
    """Quadratic form residualᵀ Σ⁻¹ residual, (...,)."""
    if form == "cholesky":
        column = residual.unsqueeze(-1)
        factor = torch.linalg.cholesky(_from_factor(numbers))
        white: Tensor = torch.linalg.solve_triangular(factor, column, upper=False)
        return white.square().sum((-2, -1))
    alike = numbers.shape[-1] == FORCES_NUMBERS and residual.dtype == numbers.dtype
    if alike and residual.shape[:-1] == numbers.shape[:-1] and exponentials.available(numbers):
        return exponentials.quadratic(numbers, residual, _LIMITS, _quadratic)
    return _quadratic(numbers, residual)


def _quadratic(numbers: Tensor, residual: Tensor) -> Tensor:
    """The equivariant form's by definition."""
    column = residual.unsqueeze(-1)
    inverse = _exponential(-_log_matrix(numbers))
    return (column * (inverse @ column)).sum((-2, -1))


def log_determinant(numbers: Tensor, form: CovarianceForm) -> Tensor:
    """Log det Σ, (...,)."""
    if form == "equivariant" and numbers.shape[-1] == FORCES_NUMBERS:
        return 3 * clamp_log_variance(numbers[..., 0])  # Q has no trace
    if form == "cholesky":
        factor: Tensor = torch.linalg.cholesky(_from_factor(numbers))
        return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return _log_matrix(numbers).diagonal(dim1=-2, dim2=-1).sum(-1)


def shift_log_scale(numbers: Tensor, log_scale: float, form: CovarianceForm) -> Tensor:
    """Numbers whose covariance is exp(2 log_scale) times that of the given ones (jitter aside)."""
    if form == "cholesky":
        size = 3 if numbers.shape[-1] == FORCES_NUMBERS else 6
        diagonal, lower = numbers[..., :size], numbers[..., size:]
        return torch.cat([diagonal + log_scale, lower * math.exp(log_scale)], dim=-1)
    return torch.add(numbers, _first(numbers), alpha=2 * log_scale)


def to_mandel(voigt: Tensor) -> Tensor:
    """Voigt components (..., 6) as a Mandel vector."""
    return voigt * _mandel_factor(voigt)


def covariance_from_mandel(matrix: Tensor) -> Tensor:
    """Covariance (..., 6, 6) of Mandel components as that of Voigt components."""
    factor = 1 / _mandel_factor(matrix)
    return factor.unsqueeze(-1) * matrix * factor


def isotropic_covariance(size: int, like: Tensor) -> Tensor:
    """Noise of variance 1 without a direction, (size, size), size 1, 3 or 6; not to be changed.

    For the six Voigt components of a stress it is 1 for the normal and ½ for the shear ones: that
    of the matrix does not change when it is rotated, as the identity would.
    """

    def build(dtype: torch.dtype, device: torch.device) -> Tensor:
        identity = torch.eye(size, dtype=torch.float64)
        unit = covariance_from_mandel(identity) if size == 6 else identity
        return unit.to(dtype=dtype, device=device)

    return constant(("isotropic", size), like, build)


def _log_matrix(numbers: Tensor) -> Tensor:
    """K = kI + anisotropic part, with k clamped and the rest softly limited."""
    basis = _basis(numbers)
    level = clamp_log_variance(numbers[..., 0])
    rest = numbers[..., 1:]
    size = (rest.square().sum(-1, keepdim=True) + 1e-12).sqrt()
    limited = rest * (ANISOTROPY_LIMIT * torch.tanh(size / ANISOTROPY_LIMIT) / size)
    identity = torch.eye(basis.shape[-1], dtype=numbers.dtype, device=numbers.device)
    return level[..., None, None] * identity + torch.einsum("...k,kab->...ab", limited, basis)


def _exponential(matrix: Tensor) -> Tensor:
    """Matrix exponential; its gradient is finite at degenerate eigenvalues, unlike that of eigh."""
    result: Tensor = torch.linalg.matrix_exp(matrix)
    return result


def _from_factor(numbers: Tensor) -> Tensor:
    """LLᵀ + εI; for 3×3, L = [[σ1,0,0],[σ6,σ2,0],[σ5,σ4,σ3]] with exponentials on the diagonal."""
    if numbers.shape[-1] == FORCES_NUMBERS:
        size, rows, columns = 3, (2, 2, 1), (1, 0, 0)
    else:
        size = 6
        rows, columns = zip(*[(i, j) for i in range(size) for j in range(i)], strict=True)
    half = (LOG_VARIANCE_RANGE[0] / 2, LOG_VARIANCE_RANGE[1] / 2)
    diagonal = numbers[..., :size].clamp(*half).exp()
    entries = [[numbers.new_zeros(numbers.shape[:-1])] * size for _ in range(size)]
    for k in range(size):
        entries[k][k] = diagonal[..., k]
    for k, (row, column) in enumerate(zip(rows, columns, strict=True)):
        entries[row][column] = numbers[..., size + k]
    factor = torch.stack([torch.stack(row, dim=-1) for row in entries], dim=-2)
    jitter = CHOLESKY_JITTER * torch.eye(size, dtype=numbers.dtype, device=numbers.device)
    return factor @ factor.mT + jitter


def _mandel_factor(like: Tensor) -> Tensor:
    root = math.sqrt(2)
    return torch.tensor([1, 1, 1, root, root, root], dtype=like.dtype, device=like.device)


def _first(numbers: Tensor) -> Tensor:
    """1 for the first number, 0 for the others."""
    size = numbers.shape[-1]

    def build(dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.tensor([1.0] + [0.0] * (size - 1), dtype=dtype, device=device)

    return constant(("first", size), numbers, build)


def _basis(numbers: Tensor) -> Tensor:
    """Symmetric matrices that the numbers after the first multiply."""
    build = _quadrupole_basis if numbers.shape[-1] == FORCES_NUMBERS else _stress_basis
    return constant(build, numbers, lambda dtype, device: build().to(dtype=dtype, device=device))


def _quadrupole_basis() -> Tensor:
    """Five orthonormal traceless symmetric matrices B_m with xᵀ B_m x ∝ Y_2m(x), (5, 3, 3)."""
    root, sixth = math.sqrt(0.5), math.sqrt(1 / 6)
    basis = torch.zeros(5, 3, 3, dtype=torch.float64)
    basis[0, 0, 2] = basis[0, 2, 0] = root
    basis[1, 0, 1] = basis[1, 1, 0] = root
    basis[2] = torch.diag(torch.tensor([-sixth, 2 * sixth, -sixth], dtype=torch.float64))
    basis[3, 1, 2] = basis[3, 2, 1] = root
    basis[4] = torch.diag(torch.tensor([-root, 0, root], dtype=torch.float64))
    return basis


def _stress_basis() -> Tensor:
    """Symmetric operators on symmetric 3×3 matrices, from 1×0e + 2×2e, (11, 6, 6) in Mandel order.

    S ↦ tr(S) I / 3;  S ↦ (QS + SQ) / 2;  S ↦ tr(S) Q + tr(QS) I.
    """
    root = math.sqrt(0.5)
    units = torch.zeros(6, 3, 3, dtype=torch.float64)  # orthonormal basis of symmetric matrices
    for k in range(3):
        units[k, k, k] = 1
    for k, (i, j) in enumerate([(1, 2), (0, 2), (0, 1)]):
        units[3 + k, i, j] = units[3 + k, j, i] = root
    trace = units.diagonal(dim1=-2, dim2=-1).sum(-1)
    operators = [torch.einsum("a,b->ab", trace, trace) / 3]
    operators += [torch.einsum("aij,jk,bki->ab", units, q, units) for q in _quadrupole_basis()]
    overlaps = torch.einsum("mij,aji->ma", _quadrupole_basis(), units)
    operators += [
        torch.einsum("a,b->ab", overlap, trace) + torch.einsum("a,b->ab", trace, overlap)
        for overlap in overlaps
    ]
    return torch.stack([(o + o.mT) / 2 for o in operators])
