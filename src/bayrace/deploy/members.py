"""The weight samples of a posterior, each as a potential of its own.

Whatever is computed from several evaluations (a lattice constant, a frequency, a barrier) has an
uncertainty that no single prediction carries. It is the spread of what the members say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayrace.core.protocols import ClosedForm, Shifted
from bayrace.posterior.point import Point
from bayrace.posterior.shifts import SEED
from bayrace.potential.opened import altered
from bayrace.potential.potential import Potential
from bayrace.predict.predict import reference_tensor

SAMPLES = 8  # drawn from a posterior that has any number of them


@dataclass(frozen=True, eq=False)
class Measured:
    """A value derived from a potential: mean and standard deviation over its members."""

    mean: NDArray[np.float64]  # (...)
    std: NDArray[np.float64]  # (...), with M − 1; times the calibration's factor of the forces
    members: NDArray[np.float64]  # (M, ...)


def members_of(potential: Potential, samples: int | None = None) -> list[Potential]:
    """Potentials of single weight samples: all of an ensemble, else `samples` draws (8)."""
    posterior = potential.posterior
    if posterior.name == "point":
        raise ValueError(
            "this potential has one set of weights (posterior point), so its derived values have "
            "no uncertainty; train an ensemble (--members 4), or bayrace fit --posterior llpr"
        )
    count = samples or (SAMPLES if isinstance(posterior, ClosedForm) else posterior.samples)
    if count < 2:
        raise ValueError(f"samples={count}: a spread needs at least 2")
    stacked = posterior.draw(count, seed=SEED)
    origins = reference_tensor(potential.references, potential.elements).expand(count, -1)
    if isinstance(posterior, Shifted):
        shifts = posterior.shifts(count, seed=SEED)
        origins = origins if shifts is None else origins + shifts.to(origins.device)
    result = []
    for place in range(count):
        weights = {name: value[place] for name, value in stacked.items()}
        references = dict(zip(potential.elements, origins[place].tolist(), strict=True))
        result.append(
            altered(potential, posterior=Point(weights), references=references, calibration=None)
        )
    return result


def measure(
    members: Sequence[Potential],
    value: Callable[[Potential], NDArray[np.float64]],
    *,
    factor: float = 1.0,
) -> Measured:
    """Mean and σ of `value` over members; `factor` is what σ is multiplied by."""
    values = np.stack([np.asarray(value(member), dtype=np.float64) for member in members])
    return Measured(values.mean(0), factor * values.std(0, ddof=1), values)


def spread_factor(potential: Potential) -> float:
    """What the calibration found σ of forces to be too small by; 1 without one."""
    calibration = potential.calibration
    forces = None if calibration is None else calibration.forces
    return 1.0 if forces is None else forces.factor
