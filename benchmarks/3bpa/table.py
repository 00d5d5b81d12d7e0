"""The 3BPA table and learning curves from finished runs.

python benchmarks/3bpa/table.py runs/3bpa-mse runs/3bpa-jef --figure docs/images/3bpa.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    for run in arguments.runs:
        print_table(run)
    if arguments.figure:
        draw(arguments.runs, arguments.figure)


def print_table(run: Path) -> None:
    """RMSE of total energies in meV and of force components in meV/Å, one row per test set."""
    history = read_history(run)
    print(f"{run.name}: {history[-1]['step']} steps, {history[-1]['elapsed'] / 60:.1f} min")
    for test, result in json.loads((run / "test.json").read_text()).items():
        energy, forces = (result[name]["rmse"] * 1000 for name in ("energy", "forces"))
        print(f"  {test:>6}  E {energy:7.1f} meV   F {forces:7.1f} meV/Å")


def read_history(run: Path) -> list[dict[str, Any]]:
    """Epochs of a run that were validated."""
    lines = (run / "history.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if "valid" in entry]


def draw(runs: list[Path], path: Path) -> None:
    """Validation force error against steps: time depends on what else a machine does."""
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for run in runs:
        history = read_history(run)
        steps = [entry["step"] / 1000 for entry in history]
        axes.plot(steps, [entry["valid"]["forces_rmse"] for entry in history], label=run.name)
    axes.set(xlabel="thousand steps", ylabel="validation force RMSE (meV/Å)", ylim=(0, 40))
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
