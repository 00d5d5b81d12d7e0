"""Moments of a mixture over weight samples, and what is done to them (docs/theory.md, Posteriors).

mean = average of μ_m;  aleatoric = average of Σ_m;  epistemic = covariance of the μ_m (1/M, the
mixture's own);  total = their sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances
from bayrace.core.prediction import Prediction, Uncertain, log_determinant
from bayrace.nn.covariance import isotropic_covariance


def mixture(
    values: Mapping[str, Tensor],
    batch: GraphBatch,
    references: Tensor,
    *,
    mean: bool = False,
    spread: EpistemicVariances | None = None,
) -> Prediction:
    """Moments over members and file order; `values` are (M, ...) float64 in batch order.

    `references` are energies of the elements, (Z,) or, where members differ in them, (M, Z). With
    `mean` they are averaged over atoms, as the target is. The epistemic part is that of the
    members, or `spread` where a closed form knows it: nan for what it did not compute.
    """
    order = batch.file_order
    added = references.to(batch.species.device)[..., batch.species]
    if mean:
        added = added / batch.atom_counts()[batch.structure_index]
    atomic = values["atomic"] + added
    energy = batch.summed(atomic.mT).mT  # (M, S), float64 unlike the model's own sum
    known = _among(values, energy, atomic) if spread is None else _given(values, spread)
    forces = _moments(values["forces"], values.get("forces_noise"), known.forces)
    stress = None
    if "stress" in values and known.stress is not None:
        stress = _moments(values["stress"], values.get("stress_noise"), known.stress)
    return Prediction(
        energy=_moments(energy, values.get("energy_noise"), known.energy),
        forces=Uncertain(
            forces.mean[order],
            forces.aleatoric[order],
            forces.epistemic[order],
            mean_log=None if forces.mean_log is None else forces.mean_log[order],
        ),
        stress=stress,
        atomic_energy=_mean(atomic)[order],
        structure_index=batch.structure_index[order],
        atomic_epistemic=None if known.atomic is None else known.atomic[order],
    )


class _Epistemic(NamedTuple):
    """Variances and covariances of ignorance in batch order, float64."""

    energy: Tensor  # (S,)
    forces: Tensor  # (N, 3, 3)
    stress: Tensor | None  # (S, 6, 6)
    atomic: Tensor | None  # (N,)


def _among(values: Mapping[str, Tensor], energy: Tensor, atomic: Tensor) -> _Epistemic:
    """How members differ."""
    stress = values.get("stress")
    return _Epistemic(
        (energy - _mean(energy)).square().mean(0),
        _scatter(values["forces"]),
        None if stress is None else _scatter(stress),
        None if len(atomic) == 1 else atomic.var(0, correction=0),
    )


def _scatter(values: Tensor) -> Tensor:
    """Covariances (n, d, d) of vectors (M, n, d)."""
    if len(values) == 1:  # one member agrees with itself; what is nan stays so
        nothing = (values[0] - values[0]).unsqueeze(-1)
        return nothing.expand(-1, -1, values.shape[-1]).contiguous()  # quicker than repeat
    deviation = values - values.mean(0)
    return torch.einsum("mni,mnj->nij", deviation, deviation) / values.shape[0]


def _given(values: Mapping[str, Tensor], spread: EpistemicVariances) -> _Epistemic:
    """What a closed form says; nan where it says nothing."""
    forces, stress = (
        value.double() if value is not None else _unknown(values.get(name))
        for name, value in (("forces", spread.forces), ("stress", spread.stress))
    )
    assert forces is not None  # every model has them, if only nan
    atomic = None if spread.atomic is None else spread.atomic.double()
    return _Epistemic(spread.energy.double(), forces, stress, atomic)


def _unknown(values: Tensor | None) -> Tensor | None:
    """Covariances nan of vectors (1, n, d), (n, d, d); None without vectors."""
    if values is None:
        return None
    return values.new_full((*values.shape[1:], values.shape[-1]), torch.nan)


def _mean(values: Tensor) -> Tensor:
    """Over members."""
    return values[0] if len(values) == 1 else values.mean(0)


def _moments(values: Tensor, noise: Tensor | None, epistemic: Tensor) -> Uncertain:
    """Moments of scalars (M, n) with variances (n,), or of vectors (M, n, d) with (n, d, d)."""
    if noise is None:
        return Uncertain(_mean(values), torch.zeros_like(epistemic), epistemic)
    log = None
    if len(noise) > 1:
        log = (noise.log() if noise.ndim == values.ndim else log_determinant(noise)).mean(0)
    return Uncertain(_mean(values), _mean(noise), epistemic, mean_log=log)


def concatenate(predictions: Sequence[Prediction]) -> Prediction:
    """Join predictions of successive batches into one."""
    if not predictions:
        raise ValueError("no predictions to concatenate; give at least one frame")
    stresses = [p.stress for p in predictions if p.stress is not None]
    atomic = [p.atomic_epistemic for p in predictions if p.atomic_epistemic is not None]
    novelty = [p.novelty for p in predictions if p.novelty is not None]
    counts = torch.tensor([0] + [p.energy.mean.shape[0] for p in predictions]).cumsum(0)
    return Prediction(
        energy=_join([p.energy for p in predictions]),
        forces=_join([p.forces for p in predictions]),
        stress=_join(stresses) if len(stresses) == len(predictions) else None,
        atomic_energy=torch.cat([p.atomic_energy for p in predictions]),
        atomic_epistemic=torch.cat(atomic) if len(atomic) == len(predictions) else None,
        novelty=torch.cat(novelty) if len(novelty) == len(predictions) else None,
        structure_index=torch.cat(
            [p.structure_index + int(n) for p, n in zip(predictions, counts, strict=False)]
        ),
    )


def with_label_noise(prediction: Prediction, noise: Mapping[str, float]) -> Prediction:
    """The same with a constant, isotropic aleatoric part of these standard deviations added."""
    changes: dict[str, Any] = {}
    for name, std in noise.items():
        value: Uncertain | None = getattr(prediction, name)
        if value is None:
            continue
        scalar = value.aleatoric.shape == value.mean.shape
        unit = 1.0 if scalar else isotropic_covariance(value.mean.shape[-1], value.mean)
        # all samples share it, where it is the only noise
        changes[name] = replace(value, aleatoric=value.aleatoric + std**2 * unit, mean_log=None)
    return replace(prediction, **changes)


def _join(parts: Sequence[Uncertain]) -> Uncertain:
    averaged = any(part.mean_log is not None for part in parts)
    return Uncertain(
        torch.cat([part.mean for part in parts]),
        torch.cat([part.aleatoric for part in parts]),
        torch.cat([part.epistemic for part in parts]),
        parts[0].shape,
        torch.cat([part.log_aleatoric for part in parts]) if averaged else None,
    )
