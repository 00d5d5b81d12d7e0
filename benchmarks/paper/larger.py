"""Does σ tell molecules that are larger than those of the training data, and do their errors?

    python benchmarks/paper/qm9_split.py qm9_13845.npz data/qm9-8 --heavy 8
    bayrace train benchmarks/paper/qm9-reduced.yaml -s output=runs/larger -s train.max_epochs=50 \
        -s data.train=data/qm9-8/train.npz -s data.valid=data/qm9-8/valid.npz \
        -s data.test.test=data/qm9-8/test.npz
    bayrace fit runs/larger/model.bayrace --posterior llpr --output runs/larger/llpr.bayrace
    python benchmarks/paper/larger.py runs/larger/model.bayrace data/qm9-8

AUROC of several scores, and of the size of the true error, which no σ can be asked to exceed: where
errors of the larger molecules are no larger, there is nothing to tell them by.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayrace.cli.evaluate import label_keys, read_labelled
from bayrace.evaluate.evaluation import Evaluation, evaluate
from bayrace.evaluate.metrics.ood import auroc
from bayrace.potential.potential import Potential

Array = NDArray[np.float64]


def scores(found: Evaluation) -> dict[str, Array]:
    """Numbers (S,) of the structures, by what they are."""
    atoms, sigma, error = (
        found.atom_counts.astype(np.float64),
        found.energy.std,
        abs(found.energy.error),
    )
    first = np.concatenate([[0], np.cumsum(found.atom_counts)[:-1]])
    result = {
        "σ": sigma,
        "σ/√atoms": sigma / np.sqrt(atoms),
        "σ/atoms": sigma / atoms,
        "number of atoms": atoms,
        "|error|": error,
        "|error|/√atoms": error / np.sqrt(atoms),
    }
    own = found.atomic_std
    if not np.isnan(own).any():
        result["σ of atoms, largest"] = np.maximum.reduceat(own, first)
        result["σ of atoms, mean"] = np.add.reduceat(own, first) / atoms
        result["σ of atoms, root of squares' sum"] = np.sqrt(np.add.reduceat(own**2, first))
    return result


def main() -> None:
    """Evaluate known and unknown molecules, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path, help="with test.npz and unknown.npz")
    options = parser.parse_args()
    potential = Potential.load(options.model)
    keys = label_keys(potential)
    found = {}
    for name in ("test", "unknown"):
        frames = read_labelled([str(options.folder / f"{name}.npz")], keys)
        found[name] = evaluate(potential, frames, name=name)
        energy = found[name].energy
        inside = ((energy.pit > 0.05) & (energy.pit < 0.95)).mean()
        print(
            f"{name}: {len(frames)} molecules, MAE {1000 * abs(energy.error).mean():.1f} meV, "
            f"σ {1000 * np.sqrt((energy.std**2).mean()):.1f} meV, {100 * inside:.1f} % in 90 %"
        )
    known, unknown = (scores(found[name]) for name in ("test", "unknown"))
    for name, values in known.items():
        print(f"| {name} | {auroc(values, unknown[name]):.3f} |")


if __name__ == "__main__":
    main()
