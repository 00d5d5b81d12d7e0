"""Labels beside predictions, in units of their noise: what a Gaussian likelihood is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Outputs, Params
from bayrace.core.protocols import NoisyModel
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, noise
from bayrace.nn.covariance import isotropic_covariance


class Observed(NamedTuple):
    """The labels of one quantity in a batch: n entries of d components, and their noise.

    The noise is the model's own where it predicts one, else isotropic of variance 1. A structure of
    weight 2 counts as two.
    """

    entries: Tensor  # (n,) int64, the structures or atoms with a label
    whiten: Tensor  # (n, d, d) float64, √weight · L⁻¹, where L Lᵀ is the covariance of the noise
    residual: Tensor  # (n, d) float64, label minus prediction, whitened
    log_volume: Tensor  # () float64, Σ weight · log det of the noise covariance
    components: Tensor  # () float64, Σ weight · d
    own: bool  # the noise is the model's

    def rows(self, values: Tensor) -> Tensor:
        """Whitened entries of values (N or S, d, ...) or, for the energy, (S, ...): (n, d, ...)."""
        chosen = values[self.entries].reshape(*self.residual.shape, *values.shape[self._axes :])
        return torch.einsum("nij,nj...->ni...", self.whiten.to(values.dtype), chosen)

    @property
    def _axes(self) -> int:
        return 1 if self.residual.shape[1] == 1 else 2


def observe(
    model: NoisyModel, outputs: Outputs, batch: GraphBatch, labels: Labels, *, lambdas: Lambdas
) -> dict[str, Observed]:
    """What the labels of a batch say of energy, forces and, where computed, stress."""
    with torch.no_grad():
        spread = noise(outputs, batch, model.noise_spec, lambdas)
    energy = None if spread.energy is None else spread.energy.reshape(-1, 1, 1)
    observed = {
        "energy": _observed(outputs.energy[:, None], labels.energy[:, None], energy, labels.weight),
        "forces": _observed(
            outputs.forces, labels.forces, spread.forces, labels.weight[batch.structure_index]
        ),
    }
    if outputs.stress is not None:
        observed["stress"] = _observed(outputs.stress, labels.stress, spread.stress, labels.weight)
    return observed


class Sums(NamedTuple):
    """Of the labels of one quantity over a whole data set."""

    squares: float  # of the whitened residuals
    log_volume: float  # log det of the noise covariance of all labels
    components: float  # of all labels
    own: bool  # the noise is the model's


def label_sums(
    model: NoisyModel,
    params: Params,
    data: Iterable[tuple[GraphBatch, Labels]],
    *,
    lambdas: Lambdas,
    forces: bool = True,
    stress: bool = False,
) -> dict[str, Sums]:
    """How far the labels are from the predictions; quantities without a label are left out."""
    total: dict[str, Sums] = {}
    for batch, labels in data:
        with torch.no_grad():
            outputs = evaluate(model, params, batch, forces=forces, stress=stress)
        for name, seen in observe(model, outputs, batch, labels, lambdas=lambdas).items():
            before = total.get(name, Sums(0.0, 0.0, 0.0, seen.own))
            total[name] = Sums(
                before.squares + float(seen.residual.square().sum()),
                before.log_volume + float(seen.log_volume),
                before.components + float(seen.components),
                seen.own,
            )
    return {name: sums for name, sums in total.items() if sums.components > 0}


def _observed(
    prediction: Tensor, label: Tensor, covariance: Tensor | None, weight: Tensor
) -> Observed:
    """Of predictions and labels (m, d), noise covariances (m, d, d) and weights (m,)."""
    known = ~(label.isnan() | prediction.isnan()).any(-1) & (weight > 0)
    entries = known.nonzero().squeeze(1)
    size = label.shape[-1]
    shares = weight[entries].double()
    root = shares.sqrt()[:, None, None]
    identity = torch.eye(size, dtype=torch.float64, device=label.device)
    if covariance is None:
        unit = torch.linalg.cholesky(isotropic_covariance(size, identity))
        factor = unit.expand(len(entries), size, size)
    else:
        factor = torch.linalg.cholesky(covariance[entries].double())
    whiten = root * torch.linalg.solve_triangular(factor, identity, upper=False)
    volumes = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_volume = (shares * volumes).sum()
    error = (label - prediction.detach())[entries].double()
    residual = torch.einsum("nij,nj->ni", whiten, error)
    own = covariance is not None
    return Observed(entries, whiten, residual, log_volume, size * shares.sum(), own)
