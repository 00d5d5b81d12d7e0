"""1. From data to a potential with calibrated σ: 400 frames of ethanol that come with bayrace.

python examples/train.py          writes examples-output/train/model.bayrace
"""

from __future__ import annotations

import sys
from pathlib import Path

import bayrace
from bayrace.data.embedded import embedded_frames
from bayrace.data.write import write_frames


def main(folder: Path, *, frames: int = 400, epochs: int = 30) -> bayrace.Potential:
    folder.mkdir(parents=True, exist_ok=True)
    write_frames(folder / "ethanol.traj", embedded_frames("ethanol-train")[:frames])
    config = {
        "data": {"train": str(folder / "ethanol.traj"), "valid": 0.2},
        "model": {"preset": "tiny"},
        "train": {"max_epochs": epochs},
        "output": str(folder / "train"),
    }
    potential = bayrace.train(config, overwrite=True)
    for name in ("ethanol-test", "ethanol-hot"):
        frame = embedded_frames(name)[0]  # an ase.Atoms does as well
        energy = potential.predict(frame).energy
        print(f"{name}: {float(energy.mean[0]):.3f} ± {float(energy.std[0]):.3f} eV", end="")
        print(f", and {frame.energy:.3f} eV by the method that labelled it")
    return potential


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
