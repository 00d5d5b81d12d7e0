"""Is σ right out of the box? Errors beside predicted σ of runs that set no option for it.

    python benchmarks/sigma/table.py "runs/3bpa-jef-*"          one row per test set, over the seeds

Each pattern names the runs of several seeds. Printed for every test set: RMSE and predicted σ (root
mean square) of energies and forces, their ratio, and how many labels are inside their 90 %
intervals, as mean and range over the runs; and the AUROC of the set with the largest force errors
against that with the smallest, by σ_E and by the mean force σ.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bayrace.config import make_config
from bayrace.evaluate.evaluation import Evaluation, evaluate
from bayrace.evaluate.metrics.ood import detections
from bayrace.potential.potential import Potential
from bayrace.system.process import tune_process
from bayrace.workflow.train import read_splits

HEAD = "| | E: RMSE, σ meV | RMSE/σ | in 90 % | F: RMSE, σ meV/Å | RMSE/σ | in 90 % |"


@dataclass(frozen=True)
class Row:
    """One quantity of one set in one run."""

    rmse: float
    sigma: float
    inside: float  # fraction of labels in their 90 % intervals

    @property
    def ratio(self) -> float:
        return self.rmse / self.sigma


def rows(evaluation: Evaluation) -> dict[str, Row]:
    found = {}
    for name in ("energy", "forces"):
        quality = evaluation.uncertainty()[name]
        accuracy = getattr(evaluation.accuracy.total, name)
        found[name] = Row(accuracy.rmse, quality.sharpness, quality.coverage[0.9])
    return found


def run(folder: Path) -> tuple[dict[str, dict[str, Row]], dict[str, float]]:
    """Rows of every test set, and the AUROC of the one with most wrong forces against the least."""
    potential = Potential.load(folder / "model.bayrace")
    splits = read_splits(make_config(potential.config))
    found = {name: evaluate(potential, frames, name=name) for name, frames in splits.test.items()}
    by_error = sorted(found.values(), key=lambda each: each.accuracy.total.forces.rmse)
    scores = detections(by_error[0].scores(), by_error[-1].scores())
    auroc = {
        name: scores[key].auroc
        for name, key in (("σ_E", "energy_total"), ("σ_F", "forces_mean_total"))
        if len(found) > 1 and scores[key] is not None
    }
    return {name: rows(each) for name, each in found.items()}, auroc


def text(values: list[float], form: str) -> str:
    low, high = min(values), max(values)
    middle = form.format(float(np.mean(values)))
    return middle if len(values) == 1 else f"{middle} ({form.format(low)}–{form.format(high)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="patterns of folders, one for each table")
    options = parser.parse_args()
    tune_process()
    torch.set_num_threads(1)
    for pattern in options.runs:
        folders = sorted(Path.cwd().glob(pattern))
        results = [run(folder) for folder in folders if (folder / "model.bayrace").is_file()]
        print(f"\n{pattern}: {len(results)} run(s)\n\n{HEAD}\n|{'---|' * 7}")
        for name in results[0][0]:
            line = f"| {name} "
            for quantity in ("energy", "forces"):
                each = [found[name][quantity] for found, _ in results]
                errors = text([1000 * row.rmse for row in each], "{:.1f}")
                sigmas = text([1000 * row.sigma for row in each], "{:.1f}")
                ratio = text([row.ratio for row in each], "{:.2f}")
                inside = text([100 * row.inside for row in each], "{:.0f}")
                line += f"| {errors}, {sigmas} | {ratio} | {inside} "
            print(line + "|")
        for name in results[0][1]:
            print(f"AUROC by {name}: {text([auroc[name] for _, auroc in results], '{:.3f}')}")


if __name__ == "__main__":
    main()
