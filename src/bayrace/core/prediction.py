"""Predictions: means, variances of noise and of ignorance, distributions of errors.

Sizes: S structures, N atoms, E directed edges, P undirected pairs (E = 2P), Z elements.
Units: eV, Å, eV/Å, eV/Å³. Stress uses ASE's Voigt order (xx, yy, zz, yz, xz, xy) and sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class ErrorDistribution:
    """A piecewise-linear CDF of the standardised error z = (label - mean) / σ, from 0 to 1.

    Stands for the Gaussian's where a recalibration found another distribution.
    """

    z: tuple[float, ...]  # strictly ascending
    p: tuple[float, ...]  # strictly ascending from 0 to 1, of the same length

    def __post_init__(self) -> None:
        """Refuse what is no distribution function."""
        rising = all(a < b for values in (self.z, self.p) for a, b in pairwise(values))
        rising = rising and all(math.isfinite(value) for value in self.z)
        if len(self.z) != len(self.p) or len(self.z) < 2 or not rising:
            raise ValueError(
                f"{len(self.z)} z and {len(self.p)} p: a shape needs two ascending sequences of "
                "equal length, at least 2"
            )
        if self.p[0] != 0.0 or self.p[-1] != 1.0:
            raise ValueError(f"p runs from {self.p[0]} to {self.p[-1]}; it must be from 0 to 1")

    @property
    def symmetric(self) -> bool:
        """Whether z and -z are distributed alike."""
        odd = (abs(a + b) <= 1e-9 for a, b in zip(self.z, reversed(self.z), strict=True))
        even = (abs(a + b - 1) <= 1e-9 for a, b in zip(self.p, reversed(self.p), strict=True))
        return all(odd) and all(even)

    def cdf(self, z: Tensor) -> Tensor:
        """Probability of a standardised error below z, of any shape; nan stays nan."""
        return _interpolate(z, self.z, self.p)

    def quantile(self, p: Tensor) -> Tensor:
        """The standardised error that is exceeded with probability 1 - p."""
        return _interpolate(p, self.p, self.z)


@dataclass(frozen=True)
class Uncertain:
    """A mean with the variance of its noise and of our ignorance.

    For a scalar the two are variances of the mean's shape; for a vector of length d they are
    (..., d, d) covariances. Errors of each component are Gaussian unless `shape` says otherwise.
    `mean_log` is the average over weight samples of log σ² of each one's noise, or of log det of
    its covariance, which the average of the noise itself does not tell; None where all share it.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    shape: ErrorDistribution | None = None
    mean_log: Tensor | None = None  # (...), without the dimension of a vector's components

    @cached_property
    def total(self) -> Tensor:
        """Aleatoric plus epistemic, a variance or covariance."""
        return self.aleatoric + self.epistemic

    @property
    def log_aleatoric(self) -> Tensor:
        """Average over weight samples of log σ² or log det of the noise; -inf without any."""
        if self.mean_log is not None:
            return self.mean_log
        scalar = self.aleatoric.shape == self.mean.shape
        return self.aleatoric.log() if scalar else log_determinant(self.aleatoric)

    @property
    def std(self) -> Tensor:
        """Standard deviation of each component, of the mean's shape."""
        return standard_deviation(self.total, like=self.mean)

    @property
    def level(self) -> Tensor:
        """One σ of a vector, the root mean square of its components': (...); a scalar's is `std`.

        It does not change when the vector turns.
        """
        if self.total.shape == self.mean.shape:
            return self.std
        return self.std.square().mean(-1).sqrt()

    def pit(self, label: Tensor) -> Tensor:
        """Probability given to values below the label, of the mean's shape; nan without a label.

        Uniform in 0..1 where the prediction is calibrated. Where σ is 0 it is 0, ½ or 1.
        """
        error = label - self.mean
        z = torch.where(error == 0, error, error / self.std)
        return torch.special.ndtr(z) if self.shape is None else self.shape.cdf(z)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds the label with this probability.

        Each is of the mean's shape.
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level={level}: an interval's probability is between 0 and 1")
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
        z = torch.special.ndtri(ends) if self.shape is None else self.shape.quantile(ends)
        low, high = z.tolist()
        std = self.std
        return self.mean + low * std, self.mean + high * std


@dataclass(frozen=True)
class Prediction:
    """The posterior predictive of a batch, in file order, references included, λ corrected."""

    energy: Uncertain  # (S,) eV, variances (S,)
    forces: Uncertain  # (N, 3) eV/Å, covariances (N, 3, 3)
    stress: Uncertain | None  # (S, 6) eV/Å³, covariances (S, 6, 6)
    atomic_energy: Tensor  # (N,) eV, references included
    structure_index: Tensor  # (N,) structure of each atom
    atomic_epistemic: Tensor | None = None
    """(N,) eV²: how little the energy of each atom is fixed by the training data (local prediction
    rigidity). Energies of atoms are correlated: these do not add up to the variance of the energy.
    None where it is not modelled."""
    novelty: Tensor | None = None
    """(S,): how unlike the training structures each is as a whole, 1 is usual. It tells that a
    structure is of another kind, not how wrong its energy is. None where it was not asked for, or
    the posterior does not tell."""

    @property
    def has_forces(self) -> bool:
        """False where the target is another property than the energy."""
        return not bool(self.forces.mean.isnan().all())


def standard_deviation(variance: Tensor, *, like: Tensor) -> Tensor:
    """Square root of a variance, or of a covariance's diagonal, of the shape of `like`."""
    if variance.shape == like.shape:
        return variance.sqrt()
    return variance.diagonal(dim1=-2, dim2=-1).sqrt()


def log_determinant(covariance: Tensor) -> Tensor:
    """Of positive definite (..., d, d) matrices: (...); nan or -inf where one is not."""
    if covariance.shape[-1] != 3:
        return torch.logdet(covariance)
    x, y, z = covariance.unbind(-2)  # several times faster than a factorisation
    determinant: Tensor = (x * torch.linalg.cross(y, z)).sum(-1)
    return determinant.log()


def _interpolate(x: Tensor, knots: tuple[float, ...], values: tuple[float, ...]) -> Tensor:
    """Piecewise-linear in x, constant beyond the outermost knots."""
    at = torch.tensor(knots, dtype=x.dtype, device=x.device)
    value = torch.tensor(values, dtype=x.dtype, device=x.device)
    inside = x.clamp(knots[0], knots[-1])
    right = torch.searchsorted(at, inside.contiguous()).clamp(1, len(knots) - 1)
    left = right - 1
    fraction = (inside - at[left]) / (at[right] - at[left])
    return torch.lerp(value[left], value[right], fraction)
