"""Evaluate what make.py made on the test sets, raw and recalibrated, one small file each.

    python benchmarks/posteriors/judge.py silicon --seeds 0 1 2      all that are there and new

Recalibrations are fitted to the validation frames of the run; test frames are never used for it.
Where force covariances cost dozens of predictions they are computed for some frames only, every
`every`-th of the known set; energies, their σ and force errors are those of all frames.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from artifacts import STUDIES, Artifact, artifacts, parser

from bayrace.calibrate.fit import fit_calibration
from bayrace.calibrate.seen import refuse_seen
from bayrace.cli.calibrate import applied
from bayrace.config import make_config
from bayrace.core.prediction import Prediction
from bayrace.data.frame import Frame
from bayrace.evaluate.evaluation import Evaluation, evaluate_predictions
from bayrace.evaluate.metrics.ood import detections
from bayrace.potential.potential import Potential
from bayrace.system.process import tune_process
from bayrace.workflow.train import read_splits
from bayrace.workflow.tune import training_frames

Batches = list[tuple[list[Frame], Prediction]]


def main() -> None:
    options = parser(__doc__).parse_args()
    tune_process()
    torch.set_num_threads(1)
    for seed in options.seeds:
        for artifact in artifacts(STUDIES[options.study], seed).values():
            if artifact.file.is_file():
                judge(artifact)


def judge(artifact: Artifact) -> dict[str, Any]:
    """The numbers of an artifact, eV and Å; kept in a file until the artifact changes."""
    digest = hashlib.sha256(artifact.file.read_bytes()).hexdigest()[:16]
    path = artifact.study.results / f"{artifact.row.name}-{artifact.seed}.json"
    if path.is_file() and (known := json.loads(path.read_text()))["sha256"] == digest:
        return dict(known)
    start = time.process_time()
    found = {"sha256": digest, "every": artifact.row.every, **measured(artifact)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{path}: {time.process_time() - start:.0f} s of a core", flush=True)
    return found


def measured(artifact: Artifact) -> dict[str, Any]:
    """Errors, calibration before and after, and detection."""
    potential, study = Potential.load(artifact.file), artifact.study
    _, valid = training_frames(potential)
    refuse_seen(potential.frames, valid)
    sets = read_splits(make_config(potential.config)).test
    fitted = list(potential.predict_frames(valid, calibrated=False))
    every = artifact.row.every
    predicted = {
        name: predictions(potential, sets[name], every)
        for name in dict.fromkeys((*study.shown, study.known, study.unknown))
    }
    raw = {name: evaluations(*parts) for name, parts in predicted.items()}
    methods = () if silent(fitted) else study.calibrations
    calibrations = {method: fit_calibration(fitted, method=method) for method in methods}
    after: dict[str, Any] = {
        method: {
            name: numbers(*evaluations(*(applied(calibration, part) for part in parts)))
            for name, parts in predicted.items()
        }
        for method, calibration in calibrations.items()
    }
    factors = {
        name: getattr(calibrations["scale"], name).factor
        for name in ("energy", "forces")
        if calibrations and getattr(calibrations["scale"], name) is not None
    }
    return {
        "posterior": potential.posterior.name,
        "options": potential.posterior.options(),
        "before": {name: numbers(*pair) for name, pair in raw.items()},
        "after": after,
        "factors": factors,
        "auroc": auroc(raw[study.known], raw[study.unknown]),
    }


def predictions(
    potential: Potential, frames: Sequence[Frame], every: int
) -> tuple[Batches, Batches]:
    """Raw ones for energies, of all frames, and for forces, of some of them."""
    few = len(frames) < 200  # the hot sets
    chosen = list(frames[:: max(1, every // 8) if few else every])
    full = list(potential.predict_frames(chosen, calibrated=False, edge_budget=10_000))
    if every == 1:
        return full, full
    cheap = potential.predict_frames(
        frames, calibrated=False, uncertainty="energy", edge_budget=10_000
    )
    return list(cheap), full


def evaluations(all_of_them: Batches, chosen: Batches) -> tuple[Evaluation, Evaluation]:
    def judged(batches: Batches) -> Evaluation:
        frames = [frame for some, _ in batches for frame in some]
        return evaluate_predictions(batches, frames, name="")

    first = judged(all_of_them)
    return first, first if chosen is all_of_them else judged(chosen)


def silent(batches: Iterable[tuple[Sequence[Frame], Prediction]]) -> bool:
    """Whether no σ is predicted at all, as by a network of squared errors."""
    return not any(bool(p.energy.total.any() or p.forces.total.any()) for _, p in batches)


def numbers(everything: Evaluation, chosen: Evaluation) -> dict[str, Any]:
    """What the table may show of one set."""
    energy, forces = everything.uncertainty()["energy"], chosen.uncertainty()["forces"]
    vectors = chosen.whitened()
    total = everything.accuracy.total
    assert total.energy is not None
    assert total.forces is not None
    return {
        "frames": len(everything.atom_counts),
        "force_frames": len(chosen.atom_counts),
        "energy_rmse": total.energy.rmse,
        "energy_per_atom_rmse": total.energy_per_atom.rmse,
        "forces_rmse": total.forces.rmse,
        "energy": None if energy is None else energy.to_json(),
        "forces": None if forces is None else forces.to_json(),
        "whitened": None if vectors is None else vectors.to_json(),
    }


def auroc(
    known: tuple[Evaluation, Evaluation], unknown: tuple[Evaluation, Evaluation]
) -> dict[str, float | None]:
    """By score; those of energies from all frames, those of forces from the chosen ones."""
    found: dict[str, float | None] = {}
    for place, quantity in enumerate(("energy", "forces")):
        for name, each in detections(known[place].scores(), unknown[place].scores()).items():
            if name.startswith(quantity):
                found[name] = None if each is None else each.auroc
    return found


if __name__ == "__main__":
    main()
