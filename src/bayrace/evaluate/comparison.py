"""Several potentials on the same known and unknown frames: accuracy, calibration, detection, cost.

Times are taken in turns in one run, so their ratios hold on a machine that is busy with more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bayrace.core.graph import GraphBatch
from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import Frame
from bayrace.evaluate.evaluation import Evaluation, evaluate
from bayrace.evaluate.metrics.cost import interleaved_times, peak_memory, relative_times
from bayrace.evaluate.metrics.ood import Detection, detections
from bayrace.evaluate.metrics.unified import normalised, unified_score
from bayrace.potential.potential import Potential
from bayrace.predict.predict import Uncertainty

SCORE = "energy_total"
"""The score whose AUROC enters the unified score: σ_E / √atoms."""


@dataclass(frozen=True)
class Cost:
    """Of predicting one batch with all uncertainties, beside the first potential."""

    seconds: float  # the least of all rounds
    time: float  # over that of the first
    energy_time: float  # the same where σ is computed for the energy only
    memory: int  # bytes of weights and, at the peak, of the computation
    memory_ratio: float  # over that of the first


@dataclass(frozen=True, eq=False)
class Contender:
    """What one potential is worth and costs."""

    name: str
    posterior: str
    calibration: str | None
    known: Evaluation
    unknown: Evaluation | None
    detection: Mapping[str, Detection | None]
    cost: Cost

    def rmse(self, quantity: str, *, unknown: bool = False) -> float | None:
        """RMSE of "energy" (eV) or "forces" (eV/Å) of one set; None without labels."""
        evaluation = self.unknown if unknown else self.known
        errors = None if evaluation is None else getattr(evaluation.accuracy.total, quantity)
        return None if errors is None else float(errors.rmse)

    def calibration_error(self, quantity: str, *, unknown: bool = False) -> float | None:
        """CE of "energy" or "forces" of one set; None without labels or σ."""
        evaluation = self.unknown if unknown else self.known
        found = None if evaluation is None else evaluation.uncertainty()[quantity]
        return None if found is None else found.calibration_error

    def auroc(self, score: str = SCORE) -> float | None:
        """None without unknown structures or σ."""
        found = self.detection.get(score)
        return None if found is None else found.auroc


def compare(
    potentials: Mapping[str, Potential],
    known: Sequence[Frame],
    unknown: Sequence[Frame] | None = None,
    *,
    timed: int = 16,
    rounds: int = 30,
    edge_budget: int = 20_000,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Contender]:
    """Evaluate every potential on both sets, and time it on the first `timed` known frames.

    `progress` hears what is being done.
    """
    judged: list[tuple[Evaluation, Evaluation | None]] = []
    for name, potential in potentials.items():
        progress(f"evaluating {name}")
        judge = partial(evaluate, potential, edge_budget=edge_budget)
        other = None if unknown is None else judge(unknown, name="unknown")
        judged.append((judge(known, name="known"), other))
    progress("timing")
    costs = _costs(potentials, known[:timed], rounds)
    return [
        _contender(name, potential, *sets, cost)
        for (name, potential), sets, cost in zip(potentials.items(), judged, costs, strict=True)
    ]


def unified(
    contenders: Sequence[Contender], *, normalise: bool = False, score: str = SCORE
) -> dict[str, float | None]:
    """The unified score of each by its name; None where a part of it has no value.

    Errors are those on the known set. With `normalise`, calibration errors are moved to 0..1 over
    these contenders.
    """
    errors: dict[str, dict[str, float | None]] = {}
    for quantity in ("energy", "forces"):
        found = {each.name: each.calibration_error(quantity) for each in contenders}
        pool = {name: value for name, value in found.items() if value is not None}
        errors[quantity] = {**found, **(normalised(pool) if normalise and pool else {})}
    return {
        each.name: _unified(
            energy_rmse=each.rmse("energy"),
            forces_rmse=each.rmse("forces"),
            energy_ce=errors["energy"][each.name],
            forces_ce=errors["forces"][each.name],
            auroc=each.auroc(score),
        )
        for each in contenders
    }


def to_json(contenders: Sequence[Contender], *, score: str = SCORE) -> dict[str, Any]:
    """JSON-able, eV and Å and seconds and bytes; what has no value is None."""
    raw = unified(contenders, score=score)
    scaled = unified(contenders, normalise=True, score=score)
    return {
        each.name: {
            "posterior": each.posterior,
            "calibration": each.calibration,
            "known": each.known.to_json(),
            "unknown": None if each.unknown is None else each.unknown.to_json(),
            "detection": {
                kind: None if found is None else found.to_json()
                for kind, found in each.detection.items()
            },
            "unified": {"raw": raw[each.name], "normalised": scaled[each.name]},
            "cost": vars(each.cost),
        }
        for each in contenders
    }


def _unified(**values: float | None) -> float | None:
    present = {name: value for name, value in values.items() if value is not None}
    if len(present) < len(values) or not all(map(math.isfinite, present.values())):
        return None
    return unified_score(**present)


def _contender(
    name: str,
    potential: Potential,
    known: Evaluation,
    unknown: Evaluation | None,
    cost: Cost,
) -> Contender:
    calibration = potential.calibration
    return Contender(
        name=name,
        posterior=potential.posterior.name,
        calibration=None if calibration is None else calibration.method,
        known=known,
        unknown=unknown,
        detection={} if unknown is None else detections(known.scores(), unknown.scores()),
        cost=cost,
    )


def _costs(potentials: Mapping[str, Potential], frames: Sequence[Frame], rounds: int) -> list[Cost]:
    batches = {name: _batch(potential, frames) for name, potential in potentials.items()}

    def calls(uncertainty: Uncertainty) -> list[Callable[[], object]]:
        return [
            partial(potential.predict_batch, batches[name], uncertainty=uncertainty)
            for name, potential in potentials.items()
        ]

    full, energy = calls("full"), calls("energy")
    times = interleaved_times([*full, *energy], rounds=rounds)
    ratios = relative_times(times)
    memory = [
        _weights(potential) + peak_memory(call, device=potential.device)
        for potential, call in zip(potentials.values(), full, strict=True)
    ]
    count = len(full)
    return [
        Cost(
            seconds=float(times[:, place].min()),
            time=float(ratios[place]),
            energy_time=float(ratios[count + place]),
            memory=memory[place],
            memory_ratio=memory[place] / memory[0],
        )
        for place in range(count)
    ]


def _batch(potential: Potential, frames: Sequence[Frame]) -> GraphBatch:
    model = potential.model
    graphs = [build_graph(f, elements=model.elements, cutoff=model.cutoff) for f in frames]
    return collate(
        graphs,
        elements_count=len(model.elements),
        dtype=potential.dtype,
        device=potential.device,
    )


def _weights(potential: Potential) -> int:
    """Bytes of the posterior and of the samples that predictions use."""
    tensors = (*potential.posterior.tensors().values(), *potential.folded.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
