"""3. Molecular dynamics that stops where the potential no longer knows what it does.

python examples/dynamics.py       after examples/train.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import bayrace
from bayrace.data.embedded import embedded_frames
from bayrace.simulate.dynamics import DynamicsSettings, simulate
from bayrace.simulate.stop import StopRule


def main(folder: Path, *, steps: int = 2000) -> dict[int, int]:
    potential = bayrace.Potential.load(folder / "train" / "model.bayrace")
    start = embedded_frames("ethanol-test")[0]
    rule = StopRule(1.0, 0.1)  # a force error of 1 eV/Å on any atom, with a probability of 10 %
    reached = {}
    for temperature in (300, 2000):
        settings = DynamicsSettings("nvt", temperature, steps, uncertainty_every=10)
        *_, last = simulate(potential, start, settings, rule=rule)
        reached[temperature] = last.step
        why = "stopped by its uncertainty" if last.broken else "finished"
        print(f"{temperature} K: {why} at step {last.step}, σ_E = {last.energy_std:.3f} eV")
    return reached


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
