"""Largest total variance: half of the budget by energies, half by forces.

Energy variances are extensive and are taken per atom, σ_E²/N, so that a large structure is not
chosen for its size alone. The number of an atom is a third of the trace of its force covariance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bayrace.core.prediction import Prediction
from bayrace.select.acquire.interface import (
    Needs,
    OverAtoms,
    Pick,
    Pool,
    descending,
    reduce_over_atoms,
    require_spread,
)

_ENERGY, _FORCES = "variance-energy", "variance-force"  # eV² per atom, (eV/Å)²


@dataclass(frozen=True)
class Variance:
    """Largest total variance, half by energy, half by forces."""

    name: ClassVar[str] = "variance"
    needs: ClassVar[Needs] = Needs("full")

    def measure(self, prediction: Prediction, *, over_atoms: OverAtoms) -> dict[str, Tensor]:
        """Both variances of each structure."""
        structures = len(prediction.energy.mean)
        atoms = prediction.owner.bincount(minlength=structures)
        found = {_ENERGY: prediction.energy.total / atoms}
        if prediction.has_forces:
            forces = prediction.forces.total.diagonal(dim1=-2, dim2=-1).mean(-1)
            found[_FORCES] = reduce_over_atoms(
                forces, prediction.owner, structures, over_atoms=over_atoms
            )
        return found

    def order(self, pool: Pool, *, seed: int) -> Iterator[Pick]:  # noqa: ARG002
        """Forces, where the target has some, and energies in turn."""
        names = [name for name in (_FORCES, _ENERGY) if name in pool.columns]
        require_spread([pool.columns[name] for name in names], "variance")
        yield from descending(pool, *names)


METHODS = (Variance,)
