"""Small potentials with every posterior; that of a newcomer has `distance` and is calibrated."""

from __future__ import annotations

import numpy as np
import torch

from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.core.prediction import ErrorDistribution
from bayrace.data.distances import Distances
from bayrace.models.noise import Lambdas, NoiseSpec
from bayrace.models.race.network import Race
from bayrace.potential.potential import Potential
from bayrace.testing import small_spec
from bayrace.testing.examples import EXAMPLES


def newcomer() -> Potential:
    """What a training without options ends with, but for its size."""
    return potential_of("distance", 1)


def potential_of(name: str, seed: int) -> Potential:
    """One with a posterior by its label; odd seeds are float64."""
    shallow = NoiseSpec("shallow", "extensive", "equivariant", stress=False, members=4)
    joint = NoiseSpec("joint", "extensive", "equivariant", stress=True)
    noise = shallow if name == "shallow" else joint
    spec = small_spec((1, 6, 8), cutoff=4.0, mean_neighbours=8.0, noise=noise)
    model = Race(spec)
    params = model.init(seed, dtype=torch.float64 if seed % 2 else torch.float32)
    return Potential(
        spec=spec,
        posterior=EXAMPLES[name](model, params),
        references={1: -13.6, 6: -1029.1, 8: -2041.3},
        lambdas=Lambdas(1.0, 100.0, 1.0),
        statistics={"mean_neighbours": 8.0, "distance_gap": 0.1, "valid_metrics": {"a": 1.0}},
        config={"model": {"preset": "tiny"}, "data": {"train": ["x.xyz"]}, "seed": 0},
        fingerprint="0" * 64,
        calibration=_by_scale() if name == "distance" else _by_others(),
        frames={"train": np.arange(5)},
        distances=Distances(4.0, {(1, 8): np.arange(2002, dtype=np.uint8)}),
    )


def _by_scale() -> Calibration:
    """The default."""
    energy = Recalibration(1.5, 30, interval=(1.2, 1.9))
    forces = Recalibration(0.9, 270, interval=(0.8, 1.0))
    return Calibration("scale", energy, forces, None, 30, "1" * 64)


def _by_others() -> Calibration:
    shape = ErrorDistribution((-2.0, 0.0, 2.0), (0.0, 0.5, 1.0))
    energy = Recalibration(1.5, 30, shape=shape, power=1.1, pivot=0.1)
    forces = Recalibration(2.0, 30, by_element={1: 1.0, 8: 3.0})
    return Calibration("isotonic", energy, forces, None, 30, "1" * 64)
