"""The loss of a batch and its gradient, by one process or by several that share the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import LossParts, Params
from bayrace.core.protocols import Likelihood, Model
from bayrace.likelihood.weights import present
from bayrace.models.derivatives import evaluate
from bayrace.train.team import Team

QUANTITIES = ("energy", "forces", "stress")
"""What losses are made of: each part is a mean over the labels of one of them."""

Counts = dict[str, float]


class Item(NamedTuple):
    """A batch, and the share of it that this process has."""

    indices: list[int]  # of the whole batch
    own: tuple[GraphBatch, Labels] | None  # None: more processes than structures

    def counts(self) -> list[float]:
        """Labels of our share, for each of QUANTITIES."""
        if self.own is None:
            return [0.0] * len(QUANTITIES)
        labels = self.own[1]
        known = [present(getattr(labels, name)).sum() for name in QUANTITIES]
        return torch.stack(known).double().tolist()


class Gradient(NamedTuple):
    """Of a whole batch."""

    loss: LossParts
    grads: tuple[Tensor, ...]  # in the order of the parameters


def gradient(
    model: Model, params: Params, likelihood: Likelihood, item: Item, *, stress: bool
) -> Gradient:
    """Of a process that has the whole batch."""
    assert item.own is not None
    batch, labels = item.own
    outputs = evaluate(model, params, batch, stress=stress)
    loss = likelihood.loss(outputs, labels, batch)
    grads = torch.autograd.grad(loss.total, tuple(params.values()), materialize_grads=True)
    return Gradient(loss, grads)


def shared_gradient(
    model: Model,
    params: Params,
    likelihood: Likelihood,
    item: Item,
    *,
    stress: bool,
    team: Team,
    totals: Sequence[float],
) -> Gradient:
    """Of a process of a team, whose shares of the batch have `totals` labels together."""
    values = tuple(params.values())
    parts: dict[str, Tensor] = {}
    grads = tuple(torch.zeros_like(value) for value in values)
    if item.own is not None:
        batch, labels = item.own
        outputs = evaluate(model, params, batch, stress=stress)
        parts = _shares(likelihood.loss(outputs, labels, batch).parts, item.counts(), totals)
        total = torch.stack([part.double() for part in parts.values()]).sum()
        grads = torch.autograd.grad(total, values, materialize_grads=True)
        grads = tuple(grad.contiguous() for grad in grads)
    team.add(grads)
    found = [float(parts[name].detach()) if name in parts else 0.0 for name in QUANTITIES]
    said = team.total([*found, *(float(name in parts) for name in QUANTITIES)])
    numbers, known = said[: len(QUANTITIES)], said[len(QUANTITIES) :]
    whole = {
        name: torch.tensor(number, dtype=torch.float64, device=values[0].device)
        for name, number, there in zip(QUANTITIES, numbers, known, strict=True)
        if there
    }
    return Gradient(LossParts(torch.stack(list(whole.values())).sum(), whole), grads)


def _shares(
    parts: dict[str, Tensor], counts: Sequence[float], totals: Sequence[float]
) -> dict[str, Tensor]:
    """Means over our labels, as what they add to the means over all labels."""
    unknown = parts.keys() - set(QUANTITIES)
    if unknown:
        raise ValueError(
            f"loss of {', '.join(sorted(unknown))}: several processes share losses of "
            f"{', '.join(QUANTITIES)} alone; train it with one process"
        )
    factors = {
        name: count / max(total, 1.0)
        for name, count, total in zip(QUANTITIES, counts, totals, strict=True)
    }
    return {name: part * factors[name] for name, part in parts.items()}
