"""2. Another posterior for a trained network, a calibration, and what both are worth.

python examples/judge.py          after examples/train.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import bayrace
from bayrace.data.embedded import embedded_frames
from bayrace.evaluate.evaluation import evaluate


def main(folder: Path) -> bayrace.Potential:
    potential = bayrace.Potential.load(folder / "train" / "model.bayrace")
    rigid = bayrace.fit(potential, "llpr")
    honest = bayrace.calibrate(rigid, embedded_frames("ethanol-valid"), method="conformal")
    honest.save(folder / "llpr.bayrace")
    test = embedded_frames("ethanol-test")
    for name, each in (("distance", potential), ("llpr", rigid), ("llpr, conformal", honest)):
        forces = evaluate(each, test, name=name).forces
        inside = float((abs(forces.error) < 1.645 * forces.std).mean())
        print(f"{name}: {inside:.0%} of force components within 1.645 σ")
    return honest


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
