"""How many labels does a choice save? Closed loops that differ in nothing but `select.by`.

    python benchmarks/active/curves.py [--by bald-ef random] [--seeds 0] [--labels 60 90]

Each loop is `bayrace active benchmarks/active/loop.yaml` in a folder of its own; finished ones are
read, interrupted ones go on. Prints the curves, and for the error that the first reaches with all
its labels how many each of the others needs (log-linear between rounds, first crossing).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt

Curve = list[tuple[int, float]]  # labels, RMSE of forces in meV/Å
CONFIG = Path(__file__).with_name("loop.yaml")


def main() -> None:
    options = arguments()
    budgets = dict(zip(options.by, options.labels, strict=True))
    ratios: dict[str, list[str]] = {}
    for seed in options.seeds:
        found = {by: curve(options, by, seed, budgets[by]) for by in options.by}
        show(found, seed)
        for by, ratio in compare(found, options.by[0]).items():
            ratios.setdefault(by, []).append(ratio)
        if options.figure is not None:
            draw(found, options.figure)
    for by, values in ratios.items():
        print(f"labels of {by} / labels of {options.by[0]} for that error: {', '.join(values)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--by", nargs="+", default=["bald-ef", "random"])
    parser.add_argument("--labels", nargs="+", type=int, default=[60, 90], help="of each")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--output", type=Path, default=Path("runs/loop-ethanol"))
    parser.add_argument("--set", default="hot", help="test set")
    parser.add_argument("--figure", type=Path, help="draw the curves of the last seed to this file")
    parser.add_argument("--override", "-o", action="append", default=[], help="key=value")
    return parser.parse_args()


def curve(options: argparse.Namespace, by: str, seed: int, labels: int) -> Curve:
    """Run a loop to its end, or go on with it, and read its rounds."""
    folder = options.output / f"{by}-seed{seed}"
    changes = [*options.override, f"select.by={by}", f"seed={seed}", f"output={folder}"]
    changes.append(f"stop.labels={labels}")
    command = [sys.executable, "-m", "bayrace.cli.main", "active", str(options.config)]
    for change in changes:
        command += ["-o", change]
    begin = time.monotonic()
    subprocess.run(command, check=True)
    print(f"{folder}: {time.monotonic() - begin:.0f} s", flush=True)
    content = json.loads((folder / "rounds.json").read_text(encoding="utf-8"))
    return [
        (each["labels"], 1000 * each["errors"][options.set]["forces_rmse"])
        for each in content["rounds"]
    ]


def show(found: dict[str, Curve], seed: int) -> None:
    print(f"seed {seed}: labels, RMSE of forces in meV/Å")
    for by, points in found.items():
        print(f"  {by:<12}", "  ".join(f"{labels} {rmse:.1f}" for labels, rmse in points))


def draw(found: dict[str, Curve], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for by, points in found.items():
        labels, rmse = zip(*points, strict=True)
        axes.plot(labels, rmse, "o-", label=by)
    axes.set(xlabel="new labels", ylabel="RMSE of forces, meV/Å")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def compare(found: dict[str, Curve], first: str) -> dict[str, str]:
    """Labels that others need for the least error of `first`, relative to what it needs."""
    target = min(rmse for _, rmse in found[first])
    needed = {by: crossing(points, target) for by, points in found.items()}
    print(f"  labels for {target:.1f} meV/Å:")
    for by, labels in needed.items():
        shown = f"more than {found[by][-1][0]}" if math.isinf(labels) else f"{labels:.0f}"
        print(f"  {by:<12} {shown}")
    return {
        by: f"{labels / needed[first]:.2f}"
        if math.isfinite(labels)
        else f"more than {found[by][-1][0] / needed[first]:.2f}"
        for by, labels in needed.items()
        if by != first
    }


def crossing(points: Curve, target: float) -> float:
    """Where a curve first falls to the target; infinite if it never does."""
    if points[0][1] <= target:
        return float(points[0][0])
    for (left, high), (right, low) in itertools.pairwise(points):
        if low <= target:
            part = math.log(high / target) / math.log(high / low)
            return left + part * (right - left)
    return math.inf


if __name__ == "__main__":
    main()
