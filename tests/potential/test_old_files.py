"""Files that an earlier bayrace wrote, one of each posterior, load and predict as they did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bayrace.posterior import POSTERIORS
from bayrace.potential.potential import Potential
from bayrace.testing import random_frame

OLD = Path(__file__).parent / "old"
PREDICTED = json.loads((OLD / "predictions.json").read_text())


@pytest.mark.parametrize("name", PREDICTED)
def test_old_files_predict_as_before(name: str) -> None:
    potential = Potential.load(OLD / f"{name}.bayrace")
    frame = random_frame((1, 8), 6, seed=0, cell=5.0 * np.eye(3))
    found = potential.predict(frame, stress=True)
    values = {
        "energy": found.energy.mean,
        "energy_std": found.energy.std,
        "forces": found.forces.mean,
        "forces_variance": found.forces.total.diagonal(dim1=-2, dim2=-1),
    }
    for quantity, value in values.items():
        before = torch.tensor(PREDICTED[name][quantity], dtype=torch.float64)
        scale = float(before.abs().max())
        torch.testing.assert_close(value.double(), before, rtol=1e-4, atol=1e-5 * scale)


def test_there_is_one_of_each_posterior_and_they_are_small() -> None:
    assert {name.split("-")[0] for name in PREDICTED} == set(POSTERIORS)
    assert sum(path.stat().st_size for path in OLD.glob("*")) < 200_000
