"""When to stop a simulation: the probability that some atom's force is wrong by too much.

The error e of one atom's force has the predicted, recalibrated 3×3 covariance Σ = total. Write it
as e = R·Σ^½·u with u uniform on the unit sphere. Then

    P(|e| > x) = ⟨S(x / |Σ^½ u|)⟩ over u,    S(r) = P(R > r),

for any anisotropy, singular Σ included; the average is a smooth integral over an octant. σ is the
size that errors have on the average; single ones scatter about it more than a Gaussian does, at
home and the more abroad, and it is the largest that a rule is about. So R is that of Student's t
with four degrees of freedom and the covariance Σ. Where a calibration found another shape F of the
components, R is the radius of the only spherical law whose components are so distributed (see
`radial_tail`).

Over atoms, "any" takes 1 − Π(1 − pᵢ), as if errors of different atoms were independent. They are
not quite: positive correlation makes the truth smaller, so the rule errs on the safe side; "max"
takes the worst atom alone, a lower bound whatever the correlation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Gt, Lt
from numpy.typing import NDArray

from bayrace.core.prediction import ErrorDistribution
from bayrace.data.distances import Gap
from bayrace.nn.spreads import Directions, Spreads, compiled, spreads

if TYPE_CHECKING:
    from bayrace.potential.potential import Potential

Array = NDArray[np.float64]
Tail = Callable[[Array], Array]
"""P(R > r) for radii r of any shape, ∞ included."""

Action = Literal["stop", "warn", "record"]
OverAtoms = Literal["any", "max"]

_GRIDS = ((1.5, (8, 6)), (3.0, (12, 10)), (10.0, (16, 16)), (math.inf, (48, 64)))
"""Nodes in cos θ and intervals in φ by the largest ratio of eigenvalues for which their average of
Student's tail is exact to 1e-7 of itself, above `_NEGLIGIBLE`."""
_NEGLIGIBLE = 1e-9  # an atom below it is given its upper bound


class Risk(NamedTuple):
    """How likely a force is wrong by more than is allowed."""

    probability: float
    atom: int  # the one that is likeliest to be


@dataclass(frozen=True)
class StopRule:
    """Act when P(|force error on any atom| > max_force_error) > probability.

    With `gap` also where no model can know: see `bayrace.data.distances`.
    """

    max_force_error: Annotated[float, Gt(0)] = 0.5
    """Largest force error that is allowed on an atom, eV/Å."""
    probability: Annotated[float, Gt(0), Lt(1)] = 0.05
    """Act when the probability of a larger force error exceeds this (0 to 1)."""
    over_atoms: OverAtoms = "any"
    """Atoms: as if their errors were independent (any), or the worst alone (max)."""
    action: Action = "stop"
    """stop: the run ends there; warn and record: it goes on."""
    gap: Annotated[float, Gt(0)] | None = None
    """Å; act also where a distance is so far from those of the training data. null: never."""

    def __post_init__(self) -> None:
        """Refuse numbers that make no rule."""
        if not (math.isfinite(self.max_force_error) and self.max_force_error > 0):
            raise ValueError(
                f"max_force_error={self.max_force_error} eV/Å: must be above 0, such as 0.5"
            )
        if not 0 < self.probability < 1:
            raise ValueError(
                f"probability={self.probability}: give one between 0 and 1, such as 0.05"
            )
        if self.gap is not None and not self.gap > 0:
            raise ValueError(f"gap={self.gap} Å: must be above 0, such as 0.05")

    def check_distances(self, potential: Potential) -> None:
        """Refuse a potential that does not know the distances a gap is counted from."""
        if self.gap is not None and potential.distances is None:
            raise ValueError(
                f"gap={self.gap:g} Å: this potential's file does not tell which distances its "
                f"training data have (written by bayrace {potential.version}); train anew, or "
                "leave gap out"
            )

    def check_sigma(self, covariance: Array, potential: Potential) -> None:
        """Refuse a potential whose forces have no Σ, unless there are distances to watch."""
        if self.gap is None and not covariance.any():
            raise ValueError(
                f"this potential (posterior {potential.posterior.name}) predicts no uncertainty of "
                "forces, so a stop rule would never act; train with loss.kind nll_jef or with "
                "another posterior, watch distances with a gap, or switch the rule off"
            )

    def risk(self, covariance: Array, shape: ErrorDistribution | None = None) -> Risk:
        """The probability for one structure, from total force covariances (n, 3, 3), (eV/Å)²."""
        _refuse_unknown(covariance)
        return self.assess(covariance, shape)[1]

    def assess(
        self, covariance: Array, shape: ErrorDistribution | None = None
    ) -> tuple[Spreads, Risk]:
        """The same beside σ of atoms, for covariances that are known to be finite."""
        found, single, any_one = _assess(covariance, self.max_force_error, shape)
        worst = int(single.argmax())
        return found, Risk(float(single[worst]) if self.over_atoms == "max" else any_one, worst)

    @property
    def directions(self) -> Directions:
        """What errors as Student's t are averaged over in compiled code."""
        return _directions()

    @property
    def negligible(self) -> float:
        """An atom whose P is below this is given its upper bound."""
        return _NEGLIGIBLE

    def broken(self, risk: Risk, gap: Gap | None = None) -> bool:
        """Whether it is time to act."""
        if self.gap is not None and gap is not None and gap.size > self.gap:
            return True
        return risk.probability > self.probability


def exceedance(covariance: Array, error: float, *, shape: ErrorDistribution | None = None) -> Array:
    """P(|e| > error) of each atom, (n,), for errors of covariance (n, 3, 3).

    Errors have Student's t, or components of the symmetric `shape` in units of σ.
    """
    _refuse_unknown(covariance)
    return _assess(covariance, error, shape)[1]


def _refuse_unknown(covariance: Array) -> None:
    if not (math.isfinite(covariance.sum()) or np.isfinite(covariance).all()):  # the sum is quicker
        raise ValueError(
            "force covariances are not finite: either the simulation has blown up, or σ of forces "
            "is not known, as the training data had none (go without the rule, --action off), or "
            'only the uncertainty of the energy was asked for; use uncertainty="full"'
        )


def _assess(
    covariance: Array, error: float, shape: ErrorDistribution | None
) -> tuple[Spreads, Array, float]:
    """σ of atoms, P(|e| > error) of each one, (n,), and of any one."""
    if shape is None and compiled():
        return _directions().assess(covariance, error, _NEGLIGIBLE)
    found = spreads(covariance)
    single = _exceedance(found.eigenvalues, error, shape)
    return found, single, any_of(single)


def _exceedance(values: Array, error: float, shape: ErrorDistribution | None) -> Array:
    """P(|e| > error) of atoms, (n,), from eigenvalues (n, 3), the largest first."""
    tail = student_tail if shape is None else radial_tail(shape)
    grids = _GRIDS if shape is None else (_GRIDS[0], _GRIDS[-1])  # other tails have kinks
    values = values.clip(min=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        result = tail(error / np.sqrt(values[:, 0]))
        left = np.flatnonzero(result > _NEGLIGIBLE)
        ratio = values[left, 0] / values[left, 2]
        for most, nodes in grids:
            if not len(left):
                break
            here = ratio <= most
            chosen, left, ratio = left[here], left[~here], ratio[~here]
            if len(chosen):
                result[chosen] = _sphere_average(values[chosen], error, tail, nodes)
    return result


def any_of(probabilities: Array) -> float:
    """1 − Π(1 − pᵢ): that at least one of independent events happens."""
    with np.errstate(divide="ignore"):
        return float(0.0 - np.expm1(np.log1p(-probabilities.clip(0.0, 1.0)).sum()))


def student_tail(radius: Array) -> Array:
    """P(R > r) of Student's t in three dimensions, four degrees of freedom and unit covariance.

    R²/2 ~ (3/4) F(3, 4), whose tail is 1 - (5/2) s³ + (3/2) s⁵ with s² = 1 - v, v = 2 / (r² + 2);
    in powers of d = 1 - s no digits are lost.
    """
    outside = 2 / (np.square(radius) + 2)  # v
    d = outside / (1 + np.sqrt(1 - outside))
    tail: Array = d**2 * (7.5 - d * (12.5 - d * (7.5 - 1.5 * d)))
    return tail


@lru_cache(maxsize=8)
def radial_tail(shape: ErrorDistribution) -> Tail:
    """P(R > r) of the spherical law whose components have the symmetric distribution `shape`.

    A uniform component on [-a, a] belongs to a sphere's surface of radius a (Archimedes), and
    every density that falls with |z| is a mixture of such. The density is made to fall by the
    least concave majorant of the distribution of |z| (Grenander's estimator). Each sphere's
    probability is spread half-way to its neighbours.
    """
    if not shape.symmetric:
        raise ValueError("the shape of the force errors is skewed; calibrate with a symmetric one")
    z, level = _majorant(shape)
    slope = np.append(np.diff(level) / np.diff(z), 0.0)  # density of |z| before and after knots
    weight = z[1:] * (slope[:-1] - slope[1:])  # of the sphere of radius z[1:], sums to 1
    middle = (z[1:] + z[:-1]) / 2
    end = z[-1] + (z[-1] - z[-2]) / 2
    at = np.concatenate([[0.0], middle, [end]])
    remaining = np.concatenate([[1.0], weight[::-1].cumsum()[::-1], [0.0]])

    def tail(radius: Array) -> Array:
        result: Array = np.interp(radius, at, remaining)
        return result

    return tail


def _majorant(shape: ErrorDistribution) -> tuple[Array, Array]:
    """Knots of the least concave majorant of P(|error| < z), from (0, 0)."""
    z, p = np.array(shape.z), np.array(shape.p)
    positive = z > 0
    points = [(0.0, 0.0), *zip(z[positive].tolist(), (2 * p[positive] - 1).tolist(), strict=True)]
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1 and _rises(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    at, level = np.array(hull).T
    return at, level


def _rises(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b is on or below the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])


def _sphere_average(values: Array, error: float, tail: Tail, nodes: tuple[int, int]) -> Array:
    """⟨S(x / √(Σ λᵢ uᵢ²))⟩ over the sphere, (n,), for eigenvalues (n, 3)."""
    squares, weights = _octant(*nodes)
    average: Array = tail(error / np.sqrt(values @ squares.T)) @ weights
    return average


@lru_cache(maxsize=1)
def _directions() -> Directions:
    squares, weights = zip(*(_octant(*nodes) for _, nodes in _GRIDS), strict=True)
    return Directions([most for most, _ in _GRIDS], squares, weights)


@lru_cache(maxsize=len(_GRIDS))
def _octant(polar_nodes: int, intervals: int) -> tuple[Array, Array]:
    """Squared components (k, 3) of unit vectors, and weights (k,) that average over the sphere.

    Gauss in cos θ about the first axis. In φ the integrand has the period π and is even, so equal
    steps converge exponentially.
    """
    node, weight = np.polynomial.legendre.leggauss(polar_nodes)
    polar, weight = (node + 1) / 2, weight / 2
    angle = np.linspace(0.0, math.pi / 2, intervals + 1)
    step = np.full(angle.size, 1 / intervals)
    step[[0, -1]] /= 2
    first = np.repeat(polar**2, angle.size)
    second = ((1 - polar**2)[:, None] * np.cos(angle) ** 2).ravel()
    squares = np.stack([first, second, 1 - first - second], axis=1).clip(min=0.0)
    return squares, np.outer(weight, step).ravel()
