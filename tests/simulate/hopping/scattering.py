"""Scattering on one-dimensional models: what becomes of trajectories that come from the left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bayrace.simulate.hopping.models import MASS, Diabats, Model
from bayrace.simulate.hopping.swarm import HopSettings, Swarm, begin, run

MASSES = np.array([MASS])
__all__ = ["MASSES", "Outcome", "scatter"]


@dataclass(frozen=True)
class Outcome:
    """Shares of the trajectories, and how well energy and norm were kept."""

    transmitted: tuple[float, float]  # on the lower and on the upper state
    reflected: tuple[float, float]
    drift: float  # largest of the total energy, hartree
    norm: float  # largest |Σ|c|² − 1|
    last: Swarm


def scatter(
    diabats: Diabats,
    momentum: float,
    *,
    trajectories: int,
    start: float = -10.0,
    step: float = 0.02,  # bohr that are travelled in a step, about
    watch: Callable[[Swarm], None] = lambda swarm: None,
    **options: object,
) -> Outcome:
    """Send trajectories from the left on the lower state until all have left for good."""
    model = Model(diabats)
    velocity = momentum / MASS
    given = {"method": "fssh", "decoherence": "none", "substeps": 4, "width": 0.1} | options
    settings = HopSettings(
        timestep=step / velocity,
        steps=int(12 * abs(start) / step),
        hbar=1.0,
        decoherence_constant=0.1,
        **given,
    )
    at, moving = np.full((trajectories, 1), start), np.full((trajectories, 1), velocity)
    first = begin(model, at, moving, MASSES, np.zeros(trajectories, dtype=int))
    drift = norm = 0.0
    for swarm in run(model, first, MASSES, settings):
        watch(swarm)
        drift = max(drift, float(np.abs(swarm.total_energy(MASSES) - swarm.start_energy).max()))
        norm = max(norm, float(np.abs(swarm.populations.sum(1) - 1).max()))
        x, v = swarm.positions[:, 0], swarm.velocities[:, 0]
        if (((x > -start) & (v > 0)) | ((x < start) & (v < 0))).all():
            break
    right = swarm.positions[:, 0] > 0
    share = [float((right & (swarm.active == s)).mean()) for s in (0, 1)]
    back = [float((~right & (swarm.active == s)).mean()) for s in (0, 1)]
    return Outcome((share[0], share[1]), (back[0], back[1]), drift, norm, swarm)
