"""One thread and deterministic kernels: the tests run side by side and compare bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import settings

from .clusters import scheduler, scheduler_file

__all__ = ["make_potential", "scheduler", "scheduler_file"]

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
settings.register_profile("patient", deadline=None)  # a busy machine takes its time
settings.load_profile("patient")


@pytest.fixture(scope="session")
def make_potential() -> Callable[..., Any]:
    """A factory of tiny Race potentials with random weights, one member per seed."""
    from bayrace.models.noise import Lambdas, NoiseSpec
    from bayrace.models.race.network import Race
    from bayrace.posterior.ensemble import Ensemble
    from bayrace.posterior.point import Point
    from bayrace.potential.potential import Potential
    from bayrace.testing import small_spec

    def make(
        *,
        seeds: Sequence[int] = (0,),
        dtype: torch.dtype = torch.float64,
        noise: NoiseSpec | None = None,
        elements: tuple[int, ...] = (1, 6, 8),
        cutoff: float = 4.0,
    ) -> Potential:
        spec = small_spec(
            elements,
            cutoff=cutoff,
            mean_neighbours=8.0,
            noise=noise or NoiseSpec("joint", "extensive", "equivariant", stress=True),
        )
        members = [Race(spec).init(seed, dtype=dtype) for seed in seeds]
        return Potential(
            spec=spec,
            posterior=Ensemble.of(members) if len(members) > 1 else Point(members[0]),
            references={z: -13.6 * z for z in elements},
            lambdas=Lambdas(energy=2.0, forces=100.0, stress=3.0),
            statistics={"force_rms": 0.5},
            config={"model": {"preset": "tiny"}},
            fingerprint="0" * 64,
        )

    return make
