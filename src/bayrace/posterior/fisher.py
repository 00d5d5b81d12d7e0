"""The curvature that a Gaussian over weights should have, from labels that the model itself draws.

The optimum of a diagonal Gaussian has h = E[∇²ℓ], the expectation over its own weights, where ℓ is
half the loss per structure. For Gaussian likelihoods the Gauss-Newton part of it is the Fisher
information (VOGN, Khan 2018): the mean square of gradients at labels drawn from the prediction.
Real labels do not come in, so the noise of minibatches is no error here, and every square counts:
n structures leave √(2/n) of each h, whatever the number of weights and however cold the posterior
is. IVON's own estimate, one gradient times its ε/σ, is left with √(ess/n) and more.

A part of the loss is a mean over its m labels, so its gradient's square is 1/m of the mean square
of single ones; times √m it has the expectation wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Protocol

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Outputs, Params
from bayrace.core.protocols import Likelihood, NoisyModel
from bayrace.data.dataset import Dataset, epoch_batches
from bayrace.likelihood.weights import present
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, noise
from bayrace.nn.covariance import isotropic_covariance
from bayrace.train.normal import generator
from bayrace.train.settings import TrainSettings

_STREAM = 3  # apart from other uses of the run's seed


class Weighted(Likelihood, Protocol):
    """A likelihood that tells its λ."""

    @property
    def lambdas(self) -> Lambdas:
        """Weights of the quadratic terms."""
        ...


def fisher(
    model: NoisyModel,
    likelihood: Weighted,
    train: Dataset,
    draw: Callable[[int], Params],
    *,
    structures: int,
    settings: TrainSettings,
    progress: Callable[[int], None] = lambda _: None,
) -> Params:
    """Diagonal of the curvature of half the loss, (...) of each weight, from so many structures.

    They are taken one by one, each for itself: n squares tell more than those of n/5 sums of five.
    `draw(k)` gives the weights of the k-th. The likelihood must be a proper one, see
    `Likelihood.score`.
    """
    total: Params = {}
    for place, index in enumerate(islice(_order(train, settings.seed), structures)):
        params = {k: v.detach().requires_grad_() for k, v in draw(place).items()}
        batch, labels = train.batch([index], dtype=settings.torch_dtype, device=settings.device)
        outputs = evaluate(model, params, batch, stress=settings.stress)
        stream = generator(settings.seed, _STREAM, place)
        drawn = sampled_labels(model, likelihood.lambdas, outputs, labels, batch, stream)
        parts = likelihood.loss(outputs, drawn, batch).parts
        known = {name: present(getattr(labels, name)).sum() for name in parts}
        loss = torch.stack([0.5 * known[k].sqrt() * v.double() for k, v in parts.items()]).sum()
        grads = torch.autograd.grad(loss, tuple(params.values()), materialize_grads=True)
        for name, grad in zip(params, grads, strict=True):
            square = grad.double().square() / structures
            total[name] = total[name] + square if name in total else square
        progress(place + 1)
    return {name: value.to(settings.torch_dtype) for name, value in total.items()}


@torch.no_grad()
def sampled_labels(
    model: NoisyModel,
    lambdas: Lambdas,
    outputs: Outputs,
    labels: Labels,
    batch: GraphBatch,
    stream: torch.Generator,
) -> Labels:
    """Labels drawn from the prediction, missing where they are; only weights stay as they are.

    Where the model predicts no noise it is what squared errors stand for: variance 1/λ of an
    energy, 3/λ and 6/λ of the components of a force and of a stress, whose squares are averaged.
    """
    found = noise(outputs, batch, model.noise_spec, lambdas)
    weight = labels.weight.clamp(min=torch.finfo(labels.weight.dtype).tiny)
    energy = found.energy if found.energy is not None else _over(1.0, lambdas.energy)
    variance = torch.as_tensor(energy, device=weight.device) / weight
    forces = _drawn(
        outputs.forces, found.forces, 3, lambdas.forces, weight[batch.structure_index], stream
    )
    stress = labels.stress
    if outputs.stress is not None:
        stress = _drawn(outputs.stress, found.stress, 6, lambdas.stress, weight, stream)
    made = Labels(
        energy=outputs.energy + variance.sqrt() * _normal(outputs.energy, stream),
        forces=forces,
        stress=stress,
        weight=labels.weight,
    )
    pairs = zip(vars(labels).values(), vars(made).values(), strict=True)
    return Labels(*(drawn.to(old.dtype).where(~old.isnan(), old) for old, drawn in pairs))


def _drawn(
    mean: Tensor,
    covariance: Tensor | None,
    size: int,
    weight: float,
    of_structure: Tensor,
    stream: torch.Generator,
) -> Tensor:
    """Vectors (n, d) about their means; `size` components share the weight λ."""
    if covariance is None:
        covariance = isotropic_covariance(size, mean) * _over(float(size), weight)
    factor = torch.linalg.cholesky(covariance.double()).to(mean)
    noise: Tensor = (factor @ _normal(mean, stream).unsqueeze(-1)).squeeze(-1)
    return mean + noise / of_structure.sqrt().unsqueeze(-1)


def _over(value: float, weight: float) -> float:
    """value / weight; a term of weight 0 has no gradient, whatever its labels."""
    return value / weight if weight > 0 else value


def _normal(like: Tensor, stream: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=stream, dtype=torch.float32).to(like)


def _order(train: Dataset, seed: int) -> Iterator[int]:
    """Places of structures, one shuffled epoch after another, without end."""
    for epoch in count():
        for (index,) in epoch_batches(len(train), 1, seed=seed, epoch=epoch, shuffle=True):
            yield index
