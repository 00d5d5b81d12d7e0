"""The marginal likelihood of a Gaussian posterior, and the noise and prior that maximise it.

With weights w ~ N(0, 1/τ) beforehand, noise of precision β_q for each quantity q, and w* the most
likely weights given the data, Laplace's formula (MacKay 1992) reads

    log p(y) = Σ_q ½ [N_q log(β_q / 2π) - log det Σ_q - β_q R_q]
             + ½ [P log τ - τ |w*|²] - ½ log det H

with R_q the squared residuals at w* and H = τ I + Σ_q β_q JᵀΣ_q⁻¹J. It is exact for a linear model
and the full matrix H. Where the model predicts the noise Σ_q itself, β_q = 1 and stays so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PRIOR = "prior"
"""Name of τ among the precisions."""
_REAL = torch.float64
_LOG_RANGE = (-40.0, 40.0)  # of precisions: standard deviations from 2e-9 to 5e8


@dataclass(frozen=True, eq=False)
class Term:
    """What the data say of one quantity, at noise of precision 1 or of the model's own."""

    curvature: Tensor  # JᵀΣ⁻¹J: (P, P) float64, or its diagonal (P,)
    squares: float  # R, sum of the squared whitened residuals
    log_volume: float  # log det Σ of all labels
    count: float  # N, components of all labels


@dataclass(frozen=True)
class Evidence:
    """The log marginal likelihood, and the precisions at which it is that."""

    value: float  # natural logarithm
    precisions: Mapping[str, float]  # of each quantity's noise, and of the prior


def log_evidence(
    terms: Mapping[str, Term], weights: Tensor, log_precisions: Mapping[str, Tensor]
) -> Tensor:
    """Logarithm of p(y) for the weights w* (P,); differentiable in the log precisions, scalars."""
    prior = log_precisions[PRIOR]
    total = 0.5 * (len(weights) * prior - prior.exp() * weights.square().sum())
    for name, term in terms.items():
        precision = log_precisions[name]
        constants = term.count * math.log(2 * math.pi) + term.log_volume
        fit = term.count * precision - precision.exp() * term.squares
        total = total + 0.5 * (fit - constants)
    matrix = precision_matrix(terms, {name: value.exp() for name, value in log_precisions.items()})
    if matrix.ndim == 1:
        return total - 0.5 * matrix.log().sum()
    factor: Tensor = torch.linalg.cholesky(matrix)
    return total - factor.diagonal().log().sum()


def precision_matrix(terms: Mapping[str, Term], precisions: Mapping[str, Tensor | float]) -> Tensor:
    """H = τ I + Σ_q β_q JᵀΣ_q⁻¹J, (P, P) or its diagonal (P,)."""
    first = next(iter(terms.values())).curvature
    identity = torch.ones_like(first) if first.ndim == 1 else torch.eye(len(first), dtype=_REAL)
    matrix = identity * precisions[PRIOR]
    for name, term in terms.items():
        matrix = matrix + term.curvature * precisions[name]
    return matrix


def residual_precision(term: Term) -> float:
    """The precision of noise that residuals alone suggest, N / R, within reason."""
    low, high = (math.exp(limit) for limit in _LOG_RANGE)
    return min(max(term.count / max(term.squares, 1 / high), low), high)


def maximise_evidence(
    terms: Mapping[str, Term], weights: Tensor, *, fixed: Mapping[str, float]
) -> Evidence:
    """Find the precisions that are not `fixed` by quasi-Newton steps in their logarithms."""
    from scipy.optimize import minimize  # 0.2 s, not for every command

    free = [name for name in (*terms, PRIOR) if name not in fixed]
    known = {name: torch.tensor(math.log(value), dtype=_REAL) for name, value in fixed.items()}
    weights = weights.double()

    def objective(point: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        place = torch.tensor(point, dtype=_REAL, requires_grad=True)
        with torch.enable_grad():
            value = -log_evidence(
                terms, weights, known | dict(zip(free, place.unbind(), strict=True))
            )
        (slope,) = torch.autograd.grad(value, place)
        return float(value.detach()), slope.numpy()

    # the prior starts where the weights did
    guess = {name: residual_precision(term) for name, term in terms.items()} | {PRIOR: 1.0}
    start = np.log([guess[name] for name in free])
    if free:
        found = minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[_LOG_RANGE] * len(free),
            options={"ftol": 0.0, "gtol": 1e-7, "maxiter": 500, "maxls": 50},
        )
        start = found.x
    values = {name: float(value) for name, value in zip(free, start, strict=True)}
    chosen = known | {name: torch.tensor(value, dtype=_REAL) for name, value in values.items()}
    return Evidence(
        float(log_evidence(terms, weights, chosen)),
        {name: math.exp(float(value)) for name, value in chosen.items()},
    )
