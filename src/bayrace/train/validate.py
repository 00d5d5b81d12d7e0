"""Loss and errors of one weight sample on a validation set."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Outputs, Params
from bayrace.core.protocols import Likelihood, Model
from bayrace.core.target import target_of
from bayrace.data.dataset import epoch_batches
from bayrace.models.derivatives import evaluate
from bayrace.train.task import Task

Batches = Sequence[tuple[GraphBatch, Labels]]

_MILLI = 1000.0  # eV to meV
_ENERGIES = ("energy", "energy_per_atom")


def valid_batches(task: Task) -> Batches:
    """The validation set in file order, collated once so that validations can share it."""
    size = task.settings.valid_batch_size
    order = epoch_batches(len(task.valid), size, seed=0, epoch=0, shuffle=False)
    return [task.collate(task.valid, indices) for indices in order]


def validate(
    model: Model, params: Params, likelihood: Likelihood, batches: Batches, *, stress: bool
) -> dict[str, float]:
    """Score (mean over structures of the batches' losses) and errors, see monitors.MONITORS.

    Quantities without a single label are left out.
    """
    sums: dict[str, list[Tensor]] = {}
    weights: list[int] = []
    params = {name: value.detach() for name, value in params.items()}
    for batch, labels in batches:
        outputs = evaluate(model, params, batch, stress=stress)
        loss = likelihood.score().loss(outputs, labels, batch)
        weights.append(batch.n_structures)
        terms = {"loss": loss.total * batch.n_structures}
        terms |= {f"loss_{key}": part * batch.n_structures for key, part in loss.parts.items()}
        terms |= _errors(outputs, labels, batch, target_of(model).factor)
        for name, value in terms.items():
            sums.setdefault(name, []).append(value.detach().double())
    totals = {name: float(torch.stack(values).sum()) for name, values in sums.items()}
    losses = {name: value / sum(weights) for name, value in totals.items() if "/" not in name}
    return losses | _means(totals)


def _errors(
    outputs: Outputs, labels: Labels, batch: GraphBatch, factor: float
) -> dict[str, Tensor]:
    """Sums of |error| and error² over the labelled entries, and their count.

    `factor` gives those of energies, or of the property in their place, the unit that is shown.
    """
    energy = (outputs.energy - labels.energy).double()
    differences = {
        "energy": energy,
        "energy_per_atom": energy / batch.atom_counts(),
        "forces": (outputs.forces - labels.forces).double(),
    }
    references = {"energy": labels.energy, "energy_per_atom": labels.energy}
    references["forces"] = labels.forces
    if outputs.stress is not None:
        differences["stress"] = (outputs.stress - labels.stress).double()
        references["stress"] = labels.stress
    result: dict[str, Tensor] = {}
    for name, difference in differences.items():
        known = ~torch.isnan(references[name])
        error = torch.where(known, difference, 0.0) * (factor if name in _ENERGIES else _MILLI)
        result[f"{name}/count"] = known.sum()
        result[f"{name}/absolute"] = error.abs().sum()
        result[f"{name}/square"] = error.square().sum()
    return result


def _means(totals: dict[str, float]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for quantity, unit in (
        ("energy", ""),
        ("energy_per_atom", "_per_atom"),
        ("forces", ""),
        ("stress", ""),
    ):
        count = totals.get(f"{quantity}/count", 0.0)
        if not count:
            continue
        name = quantity.removesuffix("_per_atom")
        metrics[f"{name}_mae{unit}"] = totals[f"{quantity}/absolute"] / count
        metrics[f"{name}_rmse{unit}"] = math.sqrt(totals[f"{quantity}/square"] / count)
    return metrics
