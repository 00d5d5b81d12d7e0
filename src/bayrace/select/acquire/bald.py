"""BALD (Houlsby 2011): the information that a label would give about the weights.

The mutual information of label and weights, for Gaussian members of the predictive and a Gaussian
of the mixture's moments, docs/theory.md, Acquisition:

    energies  ½ [log σ_tot² − mean_m log σ_m²]
    forces    ½ [log det Σ_tot − mean_m log det Σ_m] of each atom; their mean, largest or sum

What is noise to every member does not count, unlike in a variance. Without a model of the noise the
information of a label is infinite; where the noise is the same everywhere, BALD ranks structures
as their epistemic variance does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bayrace.core.prediction import Prediction, Uncertain, log_determinant
from bayrace.select.acquire.interface import (
    AcquisitionError,
    Needs,
    OverAtoms,
    Pick,
    Pool,
    descending,
    reduce_over_atoms,
    require_spread,
)

ENERGY, FORCES = "bald-energy", "bald-force"  # nats


def energy_information(prediction: Prediction) -> Tensor:
    """BALD of the energy of each structure, (S,) nats."""
    energy = prediction.energy
    return 0.5 * (energy.total.log() - _mean_log_noise(energy, ENERGY))


def force_information(prediction: Prediction, *, over_atoms: OverAtoms = "mean") -> Tensor:
    """BALD of the forces of each structure, (S,) nats."""
    forces = prediction.forces
    if not prediction.has_forces:
        raise AcquisitionError(
            f"{FORCES}: this potential predicts a property without forces; choose by bald-energy, "
            "variance or diverse"
        )
    noise = _mean_log_noise(forces, FORCES)
    atoms = 0.5 * (log_determinant(forces.total) - noise)
    return reduce_over_atoms(
        atoms, prediction.structure_index, len(prediction.energy.mean), over_atoms=over_atoms
    )


@dataclass(frozen=True)
class BaldBoth:
    """Information about the weights, half by energy, half by forces."""

    name: ClassVar[str] = "bald-ef"
    needs: ClassVar[Needs] = Needs("full")
    names: ClassVar[tuple[str, ...]] = (FORCES, ENERGY)

    def measure(self, prediction: Prediction, *, over_atoms: OverAtoms) -> dict[str, Tensor]:
        """The information in energies, forces or both."""
        found = {}
        if FORCES in self.names:
            found[FORCES] = force_information(prediction, over_atoms=over_atoms)
        if ENERGY in self.names:
            found[ENERGY] = energy_information(prediction)
        return found

    def order(self, pool: Pool, *, seed: int) -> Iterator[Pick]:  # noqa: ARG002
        """The most informative first."""
        require_spread([pool.columns[name] for name in self.names], " and ".join(self.names))
        yield from descending(pool, *self.names)


@dataclass(frozen=True)
class BaldEnergy(BaldBoth):
    """The energy that would tell most about the weights."""

    name: ClassVar[str] = "bald-energy"
    needs: ClassVar[Needs] = Needs("energy")
    names: ClassVar[tuple[str, ...]] = (ENERGY,)


@dataclass(frozen=True)
class BaldForces(BaldBoth):
    """The forces that would tell most about the weights."""

    name: ClassVar[str] = "bald-force"
    names: ClassVar[tuple[str, ...]] = (FORCES,)


METHODS = (BaldEnergy, BaldForces, BaldBoth)


def _mean_log_noise(value: Uncertain, name: str) -> Tensor:
    log = value.log_aleatoric
    if not log.isfinite().all():
        raise AcquisitionError(
            f"{name}: this potential predicts no noise of the labels, so their information has no "
            "measure; choose by variance, train with loss.kind: nll_jef, or fit a Laplace "
            "posterior, which finds the noise of the labels"
        )
    return log
