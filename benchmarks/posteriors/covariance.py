"""Equivariant force covariances against Cholesky factors from invariants, on turned structures.

    python benchmarks/posteriors/covariance.py [--every 4] [--turns 3]

Both networks were trained alike by NLL_JEF on 3BPA (rows nll_jef and cholesky of make.py). Every
structure of a test set is turned by a random rotation of its own, and its labels with it; energies
and errors turn along, so a covariance that is physical gives the same likelihood.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from artifacts import STUDIES, artifacts
from scipy.spatial.transform import Rotation

from bayrace.config import make_config
from bayrace.data.frame import Frame
from bayrace.evaluate.evaluation import evaluate
from bayrace.potential.potential import Potential
from bayrace.system.process import tune_process
from bayrace.workflow.train import read_splits

FORMS = {"equivariant": "nll_jef-0", "Cholesky": "cholesky"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=4, help="of the 300 K frames; hot ones: all")
    parser.add_argument("--turns", type=int, default=3, help="random orientations of each frame")
    options = parser.parse_args()
    tune_process()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    study = STUDIES["3bpa"]
    rows = artifacts(study, 0)
    for form, name in FORMS.items():
        potential = Potential.load(rows[name].file, dtype="float64")
        sets = read_splits(make_config(potential.config)).test
        chosen = {"300K": sets["300K"][:: options.every], "1200K": sets["1200K"]}
        found[form] = {
            at: judged(potential, frames, turns=options.turns) for at, frames in chosen.items()
        }
    study.results.mkdir(parents=True, exist_ok=True)
    (study.results / "covariance.json").write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def judged(potential: Potential, frames: Sequence[Frame], *, turns: int) -> dict[str, Any]:
    """As the files have them, and turned."""
    generator = np.random.default_rng(0)
    turned = [[rotated(frame, generator) for frame in frames] for _ in range(turns)]
    return {
        "frames": len(frames),
        "given": whitened(potential, frames),
        "turned": [whitened(potential, each) for each in turned],
    }


def rotated(frame: Frame, generator: np.random.Generator) -> Frame:
    """The molecule and its forces in another orientation."""
    matrix = Rotation.random(rng=generator).as_matrix()
    assert frame.forces is not None
    assert not frame.pbc.any(), "cells would have to be turned too"
    return replace(frame, positions=frame.positions @ matrix.T, forces=frame.forces @ matrix.T)


def whitened(potential: Potential, frames: Sequence[Frame]) -> dict[str, float]:
    """Metrics of the covariances, per atom."""
    evaluation = evaluate(potential, frames, name="")
    found = evaluation.whitened()
    components = evaluation.uncertainty()["forces"]
    errors = evaluation.accuracy.total.forces
    assert found is not None
    assert components is not None
    assert errors is not None
    return {
        "rmse": errors.rmse,
        "nll": found.nll,
        "whitened_ce": found.calibration_error,
        "component_ce": components.calibration_error,
        "scaled_nll": scaled_nll(evaluation.distances.squared, evaluation.distances.logdet),
    }


def scaled_nll(squared: np.ndarray, logdet: np.ndarray) -> float:
    """NLL after the one factor of all covariances that is best for these very frames.

    What is left after a wrong overall scale is taken out: only the forms differ.
    """
    factor = np.mean(squared) / 3
    rest = logdet + 3 * np.log(factor) + squared / factor
    return float(np.mean(0.5 * (3 * np.log(2 * np.pi) + rest)))


def table(found: dict[str, Any]) -> str:
    rows = [
        "| | frames | F RMSE | NLL | turned | best scale: NLL | turned | whitened CE | turned |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for form, sets in found.items():
        for at, each in sets.items():
            cells = [f"{1000 * each['given']['rmse']:.1f}"]
            for metric in ("nll", "scaled_nll", "whitened_ce"):
                given = each["given"][metric]
                change = np.array([turn[metric] - given for turn in each["turned"]])
                spread = f"{change.mean():+.4f} ± {change.std():.4f}"
                tiny = f"{np.abs(change).max():.0e}"
                cells += [f"{given:.4f}", tiny if np.abs(change).max() < 1e-6 else spread]
            rows.append(f"| {form} | {at}, {each['frames']} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
