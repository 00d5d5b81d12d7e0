"""The number a search minimises: the unified score (docs/theory.md, Metrics) of one potential.

    0.25·23.06·(E_RMSE + F_RMSE) + 0.125·(CE_E + CE_F) + 0.25·(1 - AUROC)

Where no σ is predicted the calibration error is that of saturated intervals, 1/3. Without unknown
structures the last term is left out. Another property than the energy counts by its RMSE over the
standard deviation of its labels, and has no forces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bayrace.data.frame import Frame
from bayrace.evaluate.evaluation import Evaluation, evaluate
from bayrace.evaluate.metrics.ood import detections
from bayrace.evaluate.metrics.unified import KCAL_PER_MOL_PER_EV, unified_score
from bayrace.potential.potential import Potential

SATURATED = 1 / 3
SCORE = "energy_total"


@dataclass(frozen=True)
class Judgement:
    """What a potential is worth, and why."""

    score: float
    energy_rmse: float  # eV, or of a property in its unit
    forces_rmse: float  # eV/Å; 0 where there are no forces
    energy_ce: float
    forces_ce: float
    auroc: float | None


def judge(potential: Potential, known: Sequence[Frame], unknown: Sequence[Frame]) -> Judgement:
    """Score a potential on labelled frames, and on others that it should find strange."""
    here = evaluate(potential, known, name="known")
    energy, forces = here.accuracy.total.energy, here.accuracy.total.forces
    energy_rmse = energy.rmse if energy else 0.0
    forces_rmse = forces.rmse if forces else 0.0
    quality = here.uncertainty()
    found = {name: quality[name] for name in ("energy", "forces")}
    energy_ce, forces_ce = (
        SATURATED if each is None else each.calibration_error for each in found.values()
    )
    if forces is None:
        forces_ce = 0.0
    auroc = _auroc(potential, here, unknown) if unknown else None
    score = unified_score(
        energy_rmse=energy_rmse if potential.target.is_energy else _relative(here),
        forces_rmse=forces_rmse,
        energy_ce=energy_ce,
        forces_ce=forces_ce,
        auroc=1.0 if auroc is None else auroc,
    )
    return Judgement(score, energy_rmse, forces_rmse, energy_ce, forces_ce, auroc)


def _auroc(potential: Potential, here: Evaluation, unknown: Sequence[Frame]) -> float:
    """Of σ; ½ where it says nothing."""
    found = detections(here.scores(), evaluate(potential, unknown, name="unknown").scores())
    detection = found.get(SCORE)
    return 0.5 if detection is None else detection.auroc


def _relative(here: Evaluation) -> float:
    """RMSE of a property over the spread of its labels, as if that were 1 kcal/mol."""
    known = here.energy.known()
    spread = float(np.std(known.label)) or 1.0
    return float(np.sqrt(np.mean(known.error**2))) / spread / KCAL_PER_MOL_PER_EV
