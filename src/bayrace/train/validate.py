"""Loss and errors of one weight sample on a validation set."""

from __future__ import annotations

import itertools
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
from bayrace.train.team import ALONE, Team

Batches = Sequence[tuple[GraphBatch, Labels]]

_MILLI = 1000.0  # eV to meV
_ENERGIES = ("energy", "energy_per_atom")


def valid_batches(task: Task) -> Batches:
    """The validation set in file order, collated once so that validations can share it.

    Of a team every process has its share of the batches.
    """
    size = task.settings.valid_batch_size
    order = epoch_batches(len(task.valid), size, seed=0, epoch=0, shuffle=False)
    team = task.settings.team
    return [task.collate(task.valid, indices) for indices in order[team.rank :: team.size]]


def validate(
    model: Model,
    params: Params,
    likelihood: Likelihood,
    batches: Batches,
    *,
    stress: bool,
    team: Team = ALONE,
) -> dict[str, float]:
    """Score (mean over structures of the batches' losses) and errors, see monitors.MONITORS.

    Quantities without a single label are left out. The batches of a team are summed in the order
    of the validation set, so that the result does not depend on who had them.
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
    columns = {name: torch.stack(values).tolist() for name, values in sums.items()}
    shares = team.gather((columns, weights))
    count = sum(sum(mine) for _, mine in shares)
    names = next(found for found, _ in shares if found)
    totals = {name: _sum([found.get(name, []) for found, _ in shares]) for name in names}
    losses = {name: value / count for name, value in totals.items() if "/" not in name}
    return losses | _means(totals)


def _sum(shares: Sequence[list[float]]) -> float:
    """The sum over all batches, which were dealt to the processes in turns."""
    dealt = itertools.chain.from_iterable(itertools.zip_longest(*shares))
    numbers = [number for number in dealt if number is not None]
    return float(torch.tensor(numbers, dtype=torch.float64).sum())


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
