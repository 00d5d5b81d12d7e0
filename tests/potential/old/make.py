"""Writes the files beside it, with the bayrace that is on the path.

The files are those of commit d244f1f, before options moved to their methods:

    git archive d244f1f src | tar -x -C /tmp/old && PYTHONPATH=/tmp/old/src python make.py

They are kept as they are: whatever bayrace becomes, it has to read them and predict as they did.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bayrace.core.noise import NoiseSpec
from bayrace.models.noise import Lambdas
from bayrace.models.race.network import Race
from bayrace.potential.potential import Potential
from bayrace.testing import EXAMPLES, random_frame, small_spec

HERE = Path(__file__).parent
FRAME = random_frame((1, 8), 6, seed=0, cell=5.0 * np.eye(3))


def main() -> None:
    values = {}
    for label, example in EXAMPLES.items():
        shallow = label == "shallow"
        noise = NoiseSpec(
            "shallow" if shallow else "joint", "extensive", "equivariant", False, 4 * shallow
        )
        spec = small_spec((1, 8), cutoff=4.0, mean_neighbours=8.0, noise=noise)
        spec = replace(spec, hidden="2x0e+2x1o+2x2e", features=2, readout_hidden=3, layers=1)
        model = Race(spec)
        potential = Potential(
            spec=spec,
            posterior=example(model, model.init(0, dtype=torch.float32)),
            references={1: -13.6, 8: -2041.0},
            lambdas=Lambdas(energy=2.0, forces=100.0, stress=3.0),
            statistics={"force_rms": 0.5},
            config={"model": {"preset": "tiny"}},
            fingerprint="0" * 64,
        )
        name = label.replace(", ", "-").replace(" ", "-")
        potential.save(HERE / f"{name}.bayrace")
        found = potential.predict(FRAME, stress=True)
        values[name] = {
            "energy": found.energy.mean.tolist(),
            "energy_std": found.energy.std.tolist(),
            "forces": found.forces.mean.tolist(),
            "forces_variance": found.forces.total.diagonal(dim1=-2, dim2=-1).tolist(),
        }
    (HERE / "predictions.json").write_text(json.dumps(values))


if __name__ == "__main__":
    main()
