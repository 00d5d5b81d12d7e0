"""The noise heads once more, after the means have settled.

While the learning rate falls, errors shrink faster than the heads that predict them can follow, and
weights such as those of the β-NLL hold them back further: energies end up with a σ several times
too large. With the rest of the network fixed, a few epochs of the plain likelihood put that right,
at a fraction of the cost: nothing is differentiated with respect to positions. Means do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Outputs, Params
from bayrace.core.protocols import Likelihood, NoisyModel
from bayrace.data.dataset import Dataset, epoch_batches
from bayrace.models.derivatives import evaluate
from bayrace.train import optim
from bayrace.train.adam import AdamSettings
from bayrace.train.settings import TrainSettings

LR = 0.02
_OPTIMISER = AdamSettings("adamw", lr=LR, weight_decay=0.0, betas=(0.9, 0.99), eps=1e-8)
_BATCH = 20  # structures


class HeadedModel(NoisyModel, Protocol):
    """A model that can tell the weights of its noise heads from the others."""

    def noise_weights(self, params: Params) -> Params:
        """For every parameter that moves noise: 1 where only noise moves with it, else 0."""
        ...


def refit_noise(
    model: HeadedModel,
    params: Params,
    likelihood: Likelihood,
    train: Dataset,
    valid: Dataset,
    *,
    epochs: int,
    settings: TrainSettings,
    stop: Callable[[], bool] = lambda: False,
) -> Params:
    """The same weights but for the noise heads, which minimise `likelihood.score()`.

    Keeps the epoch of the best validation, or the given heads if none was better. Depends on
    nothing but its arguments, so it may be repeated after a crash.
    """
    fixed = {name: value.detach() for name, value in params.items()}
    masks = model.noise_weights(fixed)
    heads = {name: fixed[name].clone().requires_grad_() for name in masks}
    score = likelihood.score()
    learned = _Part(model, fixed, train, settings)
    held = _Part(model, fixed, valid, settings)
    state = optim.init(_OPTIMISER, heads)
    best, kept = held.mean_loss(score, heads), {k: v.detach().clone() for k, v in heads.items()}
    for epoch in range(epochs):
        rate = LR * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * epoch / epochs)))
        order = epoch_batches(len(learned), 1, seed=settings.seed, epoch=epoch, shuffle=True)
        for (place,) in order:
            if stop():
                return fixed | kept
            loss = learned.loss(score, heads, place)
            grads = torch.autograd.grad(loss, tuple(heads.values()), materialize_grads=True)
            free = [grad * mask for grad, mask in zip(grads, masks.values(), strict=True)]
            optim.step(_OPTIMISER, heads, free, state, lr=rate)
        now = held.mean_loss(score, heads)
        if now < best:
            best, kept = now, {k: v.detach().clone() for k, v in heads.items()}
    return fixed | kept


class _Part:
    """A set of frames with the means of a network that does not change."""

    def __init__(
        self, model: HeadedModel, params: Params, data: Dataset, settings: TrainSettings
    ) -> None:
        self.model, self.params, self.data, self.settings = model, params, data, settings
        self.places = epoch_batches(len(data), _BATCH, seed=0, epoch=0, shuffle=False)
        self.means = [self._means(place) for place in range(len(self.places))]

    def __len__(self) -> int:
        return len(self.places)

    def batch(self, place: int) -> tuple[GraphBatch, Labels]:
        settings = self.settings
        return self.data.batch(
            self.places[place], dtype=settings.torch_dtype, device=settings.device
        )

    def _means(self, place: int) -> Outputs:
        batch, _ = self.batch(place)
        outputs = evaluate(self.model, self.params, batch, stress=self.settings.stress)
        return outputs._replace(
            energy_head=None, forces_head=None, stress_head=None, last_features=None
        )

    def loss(self, score: Likelihood, heads: Params, place: int) -> Tensor:
        batch, labels = self.batch(place)
        found = self.model.energy(self.params | heads, batch)
        outputs = self.means[place]._replace(
            energy_head=found.energy_head,
            forces_head=found.forces_head,
            stress_head=found.stress_head,
        )
        return score.loss(outputs, labels, batch).total

    @torch.no_grad()
    def mean_loss(self, score: Likelihood, heads: Params) -> float:
        losses = [
            float(self.loss(score, heads, place)) * len(indices)
            for place, indices in enumerate(self.places)
        ]
        return sum(losses) / len(self.data)
