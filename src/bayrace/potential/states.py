"""Several electronic states from potentials: composed of smooth functions, or learnt one by one.

Diabatic: three potentials give E_PPS, E_OSS and Δ² with their gradients, and
H = [[E_PPS, Δ], [Δ, E_OSS]] gives two adiabats, their gradients and the coupling vector.
Gap: two potentials give the mean of two states and half their gap, softened (see `data.gaps`).
Adiabatic: one potential for each state, ascending in energy. The last two have no coupling vector.

Energies and gradients are composed of the mean predictions of the potentials. Their variances have
two parts. The disagreement of the members of ensembles is that of the composed quantities
themselves, member by member. What else a potential says of its errors (noise, closed forms,
calibration) is carried over to first order, by differences as wide as the errors are, the
potentials' errors being independent of each other and energies' of gradients'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bayrace.data.frame import Frame
from bayrace.data.gaps import MEAN, SOFT_GAP, SOFTENING
from bayrace.potential.potential import Potential, PotentialError

Array = NDArray[np.float64]
Form = Literal["diabatic", "gap", "adiabatic"]
Composed = tuple[Array, Array, Array | None]
"""Adiabats (F, 2), gradients (F, 2, n, 3) and, if known, ⟨0|∇1⟩ (F, n, 3)."""

FLOOR = 1e-3  # eV; Δ is taken to be at least this where it divides
CLOSEST = 0.01  # eV; half the gap where a predicted square is zero


@dataclass(frozen=True, eq=False)
class StatePrediction:
    """F structures of n atoms each in S states."""

    energies: Array  # (F, S) eV
    gradients: Array  # (F, S, n, 3) eV/Å
    coupling: Array | None  # (F, n, 3) 1/Å, ⟨0|∇1⟩ of two states
    energies_variance: Array  # (F, S) eV²
    gradients_covariance: Array  # (F, S, n, 3, 3) (eV/Å)²
    coupling_variance: Array | None  # (F, n, 3) 1/Å², of each component
    smooth_covariance: Array | None = None  # (F, n, 3, 3), of what gap potentials learnt; see below

    @property
    def trust(self) -> Array:
        """Covariance (F, S, n, 3, 3) that tells whether potentials know a structure, (eV/Å)².

        Of the gradients; but at a crossing that of an adiabat is ill-determined however well the
        mean and the gap are known. For a gap form it is therefore that of both together.
        """
        if self.smooth_covariance is None:
            return self.gradients_covariance
        shape = (len(self.energies), self.energies.shape[1], *self.smooth_covariance.shape[1:])
        return np.broadcast_to(self.smooth_covariance[:, None], shape)


@dataclass(frozen=True, eq=False)
class States:
    """Potentials that together describe electronic states."""

    potentials: tuple[Potential, ...]  # as the form has them; of adiabats the lowest first
    form: Form

    def __post_init__(self) -> None:
        """Refuse potentials that do not belong together."""
        given = len(self.potentials)
        if self.form == "diabatic" and given != 3:
            raise PotentialError(
                f"{given} potentials: a diabatic form needs three, E_PPS, E_OSS, Δ²"
            )
        if self.form == "gap" and given != 2:
            raise PotentialError(f"{given} potentials: a gap form needs two, the mean and the gap")
        if self.form == "adiabatic" and given < 2:
            raise PotentialError("1 potential: give one for each state, at least two")
        elements = {potential.elements for potential in self.potentials}
        if len(elements) > 1:
            raise PotentialError(
                f"the potentials know different elements, {sorted(elements)}; train them on the "
                "same structures"
            )

    @property
    def count(self) -> int:
        """How many states."""
        return len(self.potentials) if self.form == "adiabatic" else 2

    @staticmethod
    def load(paths: Sequence[str | Path], *, diabatic: bool, device: str = "auto") -> States:
        """From the files of the potentials, in order.

        Those that were trained on the mean and on the softened gap are recognised by their labels.
        """
        potentials = [Potential.load(path, device=device) for path in paths]
        if diabatic:
            return States(tuple(potentials), "diabatic")
        labels = [potential.config.get("data", {}).get("energy_key") for potential in potentials]
        if SOFT_GAP[0] not in labels:
            return States(tuple(potentials), "adiabatic")
        if sorted(map(str, labels)) != sorted((MEAN[0], SOFT_GAP[0])):
            raise PotentialError(
                f"trained on {', '.join(map(str, labels))}: {SOFT_GAP[0]} belongs with one "
                f"potential of {MEAN[0]}"
            )
        return States(tuple(potentials[labels.index(k)] for k in (MEAN[0], SOFT_GAP[0])), "gap")

    def predict(self, frames: Sequence[Frame], *, uncertainty: bool = True) -> StatePrediction:
        """States of structures with the same atoms, in order."""
        sizes = {len(frame.numbers) for frame in frames}
        if len(sizes) != 1:
            raise ValueError(f"structures of {sorted(sizes)} atoms; give those of one size at once")
        told = [_told(potential, frames, uncertainty) for potential in self.potentials]
        if self.form == "adiabatic":
            return _side_by_side(told)
        if self.form == "diabatic":
            return _composed(told, compose)
        mean, gap = (_covariance(each.slopes) + each.slope_rest for each in told)
        return replace(_composed(told, compose_gap), smooth_covariance=mean + gap)


@dataclass(frozen=True, eq=False)
class _Told:
    """What one potential says: of every member (M first), and the rest of its variances."""

    values: Array  # (M, F)
    slopes: Array  # (M, F, n, 3)
    value_rest: Array  # (F,), variance beyond the disagreement of members
    slope_rest: Array  # (F, n, 3, 3)


def _told(potential: Potential, frames: Sequence[Frame], uncertainty: bool) -> _Told:
    shape = (len(frames), len(frames[0].numbers))
    whole = _moments(potential, frames, uncertainty)
    values, slopes = whole[0][None], whole[1].reshape(1, *shape, 3)
    rest, slope_rest = whole[2], whole[3].reshape(*shape, 3, 3)
    members = potential.members
    count = len(next(iter(members.values())))
    if not uncertainty or count == 1:
        return _Told(values, slopes, rest, slope_rest)
    each = [_moments(member, frames, False) for member in _members(potential, count)]
    values = np.stack([one[0] for one in each])
    slopes = np.stack([one[1].reshape(*shape, 3) for one in each])
    rest = np.clip(rest - values.var(0), 0.0, None)
    away = slopes - slopes.mean(0)
    disagreement = np.einsum("mfni,mfnj->fnij", away, away) / count
    return _Told(values, slopes, rest, slope_rest - disagreement)


def _members(potential: Potential, count: int) -> list[Potential]:
    """Each member as a potential of its own."""
    from bayrace.posterior.ensemble import Ensemble

    shared = potential.origins.ndim == 1
    result = []
    for number in range(count):
        weights = {name: value[number : number + 1] for name, value in potential.members.items()}
        single = Potential(
            spec=potential.spec,
            posterior=Ensemble(weights),
            references=potential.references,
            lambdas=potential.lambdas,
            statistics={},
            config={},
            fingerprint="",
        )
        vars(single)["model"] = potential.model
        if not shared:
            vars(single)["origins"] = potential.origins[number]
        result.append(single)
    return result


def _moments(
    potential: Potential, frames: Sequence[Frame], uncertainty: bool
) -> tuple[Array, Array, Array, Array]:
    """Energies (F,), gradients (F·n, 3), their variances and covariances."""
    kind = "full" if uncertainty else "none"
    parts = [p for _, p in potential.predict_frames(frames, uncertainty=kind)]  # type: ignore[arg-type]
    columns = [
        [p.energy.mean for p in parts],
        [-p.forces.mean for p in parts],
        [p.energy.total for p in parts],
        [p.forces.total for p in parts],
    ]
    joined = [np.concatenate([t.numpy(force=True) for t in column]) for column in columns]
    return joined[0], joined[1], joined[2], joined[3]


def _side_by_side(told: Sequence[_Told]) -> StatePrediction:
    """States learnt directly, put in the order of their energies."""
    energies = np.stack([t.values.mean(0) for t in told], axis=1)
    gradients = np.stack([t.slopes.mean(0) for t in told], axis=1)
    variance = np.stack([t.values.var(0) + t.value_rest for t in told], axis=1)
    covariance = np.stack([_covariance(t.slopes) + t.slope_rest for t in told], axis=1)
    order = np.argsort(energies, axis=1)
    rows = np.arange(len(energies))[:, None]
    return StatePrediction(
        energies[rows, order],
        gradients[rows, order],
        None,
        variance[rows, order],
        covariance[rows, order],
        None,
    )


def _composed(told: Sequence[_Told], compose: Compose) -> StatePrediction:
    """Adiabats, with the disagreement of members; potentials with fewer members repeat theirs."""
    values, slopes = [t.values.mean(0) for t in told], [t.slopes.mean(0) for t in told]
    energies, gradients, coupling = compose(values, slopes)
    members = [
        compose(
            [t.values[member % len(t.values)] for t in told],
            [t.slopes[member % len(t.slopes)] for t in told],
        )
        for member in range(max(len(t.values) for t in told))
    ]
    value_rest = np.stack([t.value_rest for t in told])
    slope_rest = np.stack([t.slope_rest for t in told])
    weight, turning = _sensitivity(compose, values, slopes, np.sqrt(value_rest))
    covariance = np.einsum("kfs,kfnij->fsnij", weight**2, slope_rest)
    moved = np.einsum("kfsni,kf,kfsnj->fsnij", turning, value_rest, turning)
    vectors = [m[2] for m in members if m[2] is not None]
    return StatePrediction(
        energies,
        gradients,
        coupling,
        np.stack([m[0] for m in members]).var(0) + np.einsum("kfs,kf->fs", weight**2, value_rest),
        _covariance(np.stack([m[1] for m in members])) + covariance + moved,
        np.stack(vectors).var(0) if vectors else None,
    )


Compose = Callable[[Sequence[Array], Sequence[Array]], Composed]
"""From values (F,) and slopes (F, n, 3) of each potential."""


def compose(values: Sequence[Array], slopes: Sequence[Array]) -> Composed:
    """Adiabats (F, 2), gradients (F, 2, n, 3) and ⟨0|∇1⟩ (F, n, 3) of E_PPS, E_OSS, Δ² and slopes.

    E∓ = (E_PPS + E_OSS)/2 ∓ √((δ/2)² + Δ²), δ = E_PPS − E_OSS; d = (δ∇Δ − Δ∇δ)/(δ² + 4Δ²) with
    ∇Δ = ∇Δ²/2Δ, Δ not less than a floor. A negative Δ² counts as none.
    """
    first, second = values[0], values[1]
    square = np.clip(values[2], 0.0, None)
    spread = [np.asarray(a)[:, None, None] for a in (first - second, square)]
    root = np.maximum(np.sqrt(spread[0] ** 2 / 4 + spread[1]), FLOOR / 2)
    slope = slopes[0] - slopes[1]
    turn = (spread[0] * slope / 4 + slopes[2] / 2) / root
    mean, middle = (first + second) / 2, (slopes[0] + slopes[1]) / 2
    half = np.sqrt((first - second) ** 2 / 4 + square)
    energies = np.stack([mean - half, mean + half], axis=1)
    gradients = np.stack([middle - turn, middle + turn], axis=1)
    coupled = np.maximum(np.sqrt(spread[1]), FLOOR)
    vector = (spread[0] * slopes[2] / (2 * coupled) - coupled * slope) / (4 * root**2)
    return energies, gradients, vector


def compose_gap(values: Sequence[Array], slopes: Sequence[Array]) -> Composed:
    """Adiabats and gradients of the mean m and the softened half gap h; no coupling.

    E∓ = m ∓ √g, g = (q + √(q² + 4c⁴))/2, q = h² − s²: g is q but for q near zero or below, which no
    exact h has. There half the gap is the small c at most, and slopes stay those of the energies.
    """
    mean, soft = values
    square = soft**2 - SOFTENING**2
    width = np.sqrt(square**2 + 4 * CLOSEST**4)
    # both are one number; the second keeps its digits where the square is negative
    whole = np.where(
        square > 0, (square + width) / 2, 2 * CLOSEST**4 / np.maximum(width - square, CLOSEST**2)
    )
    half = np.sqrt(whole)
    turn = (whole / width * soft / half)[:, None, None] * slopes[1]
    energies = np.stack([mean - half, mean + half], axis=1)
    return energies, np.stack([slopes[0] - turn, slopes[0] + turn], axis=1), None


def _sensitivity(
    compose: Compose, values: Sequence[Array], slopes: Sequence[Array], errors: Array
) -> tuple[Array, Array]:
    """∂E_s/∂value, (K, F, 2), and of the gradients (K, F, 2, n, 3), by differences over `errors`.

    `errors` (K, F) are standard deviations of the values; smaller steps than 1e-4 are not taken.
    """
    weights, turning = [], []
    for which, step in enumerate(np.maximum(errors, 1e-4)):
        ends = []
        for sign in (1, -1):
            shifted = list(values)
            shifted[which] = values[which] + sign * step
            ends.append(compose(shifted, slopes))
        weights.append((ends[0][0] - ends[1][0]) / (2 * step[:, None]))
        turning.append((ends[0][1] - ends[1][1]) / (2 * step[:, None, None, None]))
    return np.stack(weights), np.stack(turning)


def _covariance(samples: Array) -> Array:
    """Of vectors (M, ..., 3) over members: (..., 3, 3)."""
    away = samples - samples.mean(0)
    result: Array = np.einsum("m...i,m...j->...ij", away, away) / len(samples)
    return result
