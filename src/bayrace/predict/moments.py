"""Moments of a mixture over weight samples, and what is done to them (docs/theory.md, Posteriors).

mean = average of μ_m;  aleatoric = average of Σ_m;  epistemic = covariance of the μ_m (1/M, the
mixture's own);  total = their sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances
from bayrace.core.prediction import Prediction, Uncertain, log_determinant
from bayrace.nn.covariance import isotropic_covariance


def mixture(
    values: Mapping[str, Tensor], batch: GraphBatch, references: Tensor, *, mean: bool = False
) -> Prediction:
    """Moments over members and file order; `values` are (M, ...) float64 in batch order.

    `references` are energies of the elements, (Z,) or, where members differ in them, (M, Z). With
    `mean` they are averaged over atoms, as the target is.
    """
    order = batch.file_order
    added = references.to(batch.species.device)[..., batch.species]
    if mean:
        added = added / batch.atom_counts()[batch.structure_index]
    atomic = values["atomic"] + added
    energy = atomic.new_zeros(atomic.shape[0], batch.n_structures)
    energy.index_add_(1, batch.structure_index, atomic)  # float64, unlike the model's own sum
    forces = _moments(values["forces"], values.get("forces_noise"))
    stress = values.get("stress")
    return Prediction(
        energy=_scalar_moments(energy, values.get("energy_noise")),
        forces=Uncertain(
            forces.mean[order],
            forces.aleatoric[order],
            forces.epistemic[order],
            log_aleatoric=None if forces.log_aleatoric is None else forces.log_aleatoric[order],
        ),
        stress=None if stress is None else _moments(stress, values.get("stress_noise")),
        atomic_energy=atomic.mean(0)[order],
        structure_index=batch.structure_index[order],
        atomic_epistemic=None if len(atomic) == 1 else atomic.var(0, correction=0)[order],
    )


def _scalar_moments(values: Tensor, noise_variance: Tensor | None) -> Uncertain:
    """Moments of scalars (M, n); variances (n,)."""
    mean = values[0] if len(values) == 1 else values.mean(0)
    epistemic = (values - mean).square().mean(0)
    if noise_variance is None:
        return Uncertain(mean, torch.zeros_like(mean), epistemic)
    log = noise_variance.log().mean(0)
    return Uncertain(mean, noise_variance.mean(0), epistemic, log_aleatoric=log)


def _moments(values: Tensor, noise_covariance: Tensor | None) -> Uncertain:
    """Moments of vectors (M, n, d); covariances (n, d, d)."""
    if len(values) == 1:  # one member agrees with itself; what is nan stays so
        mean = values[0]
        epistemic = (mean - mean).unsqueeze(-1).repeat(1, 1, values.shape[-1])
    else:
        mean = values.mean(0)
        deviation = values - mean
        epistemic = torch.einsum("mni,mnj->nij", deviation, deviation) / values.shape[0]
    if noise_covariance is None:
        return Uncertain(mean, torch.zeros_like(epistemic), epistemic)
    log = log_determinant(noise_covariance).mean(0)
    return Uncertain(mean, noise_covariance.mean(0), epistemic, log_aleatoric=log)


def with_spread(
    prediction: Prediction, spread: EpistemicVariances, batch: GraphBatch
) -> Prediction:
    """The same means with the epistemic part of a closed form; nan where it was not computed."""
    order, stress = batch.file_order, prediction.stress
    forces = None if spread.forces is None else spread.forces[order]
    return replace(
        prediction,
        energy=replace(prediction.energy, epistemic=spread.energy.double()),
        forces=_replaced(prediction.forces, forces),
        stress=None if stress is None else _replaced(stress, spread.stress),
        atomic_epistemic=None if spread.atomic is None else spread.atomic[order].double(),
    )


def _replaced(value: Uncertain, epistemic: Tensor | None) -> Uncertain:
    unknown = torch.full_like(value.epistemic, torch.nan)
    return replace(value, epistemic=unknown if epistemic is None else epistemic.double())


def concatenate(predictions: Sequence[Prediction]) -> Prediction:
    """Join predictions of successive batches into one."""
    if not predictions:
        raise ValueError("no predictions to concatenate; give at least one frame")
    stresses = [p.stress for p in predictions if p.stress is not None]
    atomic = [p.atomic_epistemic for p in predictions if p.atomic_epistemic is not None]
    counts = torch.tensor([0] + [p.energy.mean.shape[0] for p in predictions]).cumsum(0)
    return Prediction(
        energy=_join([p.energy for p in predictions]),
        forces=_join([p.forces for p in predictions]),
        stress=_join(stresses) if len(stresses) == len(predictions) else None,
        atomic_energy=torch.cat([p.atomic_energy for p in predictions]),
        atomic_epistemic=torch.cat(atomic) if len(atomic) == len(predictions) else None,
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
        unit = 1.0 if scalar else isotropic_covariance(value.mean.shape[-1]).to(value.mean)
        noise_variance = value.aleatoric + std**2 * unit
        # all samples share it, where it is the only noise
        log = noise_variance.log() if scalar else log_determinant(noise_variance)
        changes[name] = replace(value, aleatoric=noise_variance, log_aleatoric=log)
    return replace(prediction, **changes)


def with_scaled_noise(prediction: Prediction, factors: Mapping[str, float]) -> Prediction:
    """The same with aleatoric variances multiplied by these factors; with 0 there is no noise."""
    changes: dict[str, Any] = {}
    for name, factor in factors.items():
        value: Uncertain | None = getattr(prediction, name)
        if value is None or value.log_aleatoric is None:  # no noise is predicted
            continue
        components = 1 if value.aleatoric.shape == value.mean.shape else value.mean.shape[-1]
        log = value.log_aleatoric + components * math.log(factor) if factor else None
        changes[name] = replace(value, aleatoric=value.aleatoric * factor, log_aleatoric=log)
    return replace(prediction, **changes)


def _join(parts: Sequence[Uncertain]) -> Uncertain:
    logs = [part.log_aleatoric for part in parts if part.log_aleatoric is not None]
    return Uncertain(
        torch.cat([part.mean for part in parts]),
        torch.cat([part.aleatoric for part in parts]),
        torch.cat([part.epistemic for part in parts]),
        parts[0].shape,
        torch.cat(logs) if len(logs) == len(parts) else None,
    )
