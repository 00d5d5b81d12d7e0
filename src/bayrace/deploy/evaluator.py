"""What every simulation code asks: energy, forces and virial of structures, and how sure they are.

LAMMPS, i-PI and OpenMM differ in how they hand over positions and take results. What is between is
here, once: neighbours, the prediction, the probability of the stop rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.core.prediction import ErrorDistribution, Prediction
from bayrace.data.distances import Gap
from bayrace.deploy.verlet import SKIN, Geometry, VerletList
from bayrace.nn.spreads import spreads
from bayrace.potential.opened import opened
from bayrace.potential.potential import Potential, refuse_property
from bayrace.predict.predict import Uncertainty

if TYPE_CHECKING:  # the rule is handed in from above
    from bayrace.simulate.stop import StopRule

Array = NDArray[np.float64]
_VOIGT = np.array([[0, 5, 4], [5, 1, 3], [4, 3, 2]])  # of xx, yy, zz, yz, xz, xy


class Sigma(NamedTuple):
    """How sure a potential is of one structure of n atoms: calibrated standard deviations."""

    energy: float  # eV, total
    energies: Array  # (n,) eV, epistemic, of the energies of atoms; 0 where it is not modelled
    forces: Array  # (n, 3) eV/Å, total
    covariance: Array  # (n, 3, 3) (eV/Å)², total, of each atom's force
    level: Array  # (n,) eV/Å, root mean square of the three components
    worst: Array  # (n,) eV/Å, √ of the covariance's largest eigenvalue: σ in the worst direction
    risk: float  # P(|force error| > bound) of the rule; 0 without one
    gap: float  # Å, widest one of the distances; 0 where the rule does not watch them
    broken: bool  # whether the rule says to act


class Evaluated(NamedTuple):
    """One structure of n atoms in the order it was given."""

    energy: float  # eV
    energies: Array  # (n,) eV
    forces: Array  # (n, 3) eV/Å
    virial: Array | None  # (3, 3) eV, −∂E/∂strain; None unless periodic in all three directions
    sigma: Sigma | None  # None where it was not asked for


class Evaluator:
    """A potential behind a simulation code; remembers the neighbours of the last structure.

    `potential` is a file or a Potential; device, dtype and skin are those of the ASE calculator.
    """

    def __init__(
        self,
        potential: str | Path | Potential,
        *,
        rule: StopRule | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype | None = None,
        skin: float = SKIN,
    ) -> None:
        self.potential = opened(potential, device=device, dtype=dtype)
        refuse_property(self.potential, "an engine")
        if rule is not None:
            rule.check_distances(self.potential)
        self.rule, self._modelled = rule, False
        self.neighbours, self._together = (
            VerletList(
                elements=self.potential.elements,
                cutoff=self.potential.model.cutoff,
                skin=skin,
                device=self.potential.device,
            )
            for _ in range(2)  # of one structure, and of several at once
        )

    def __call__(self, geometry: Geometry, *, uncertainty: Uncertainty = "full") -> Evaluated:
        """Evaluate one structure, which has likely moved little since the last call."""
        return self.many([geometry], uncertainty=uncertainty)[0]

    def moved(
        self, geometry: Geometry, *, same: bool, uncertainty: Uncertainty = "full"
    ) -> Prediction:
        """The bare prediction of one structure, for callers that interpret it themselves.

        With `same` only its atoms have moved since it was evaluated last.
        """
        dtype = self.potential.dtype
        batch = self.neighbours.again(geometry.positions, dtype=dtype) if same else None
        if batch is None:
            batch = self.neighbours.graph(geometry, dtype=dtype)
        stress = bool(geometry.pbc.all())
        return self.potential.predict_batch(batch, stress=stress, uncertainty=uncertainty)

    def many(
        self, geometries: Sequence[Geometry], *, uncertainty: Uncertainty = "full"
    ) -> list[Evaluated]:
        """Evaluate several structures, such as the beads of a path integral, as one batch."""
        neighbours = self.neighbours if len(geometries) == 1 else self._together
        batch = neighbours.batch(geometries, dtype=self.potential.dtype)
        periodic = [bool(geometry.pbc.all()) for geometry in geometries]
        prediction = self.potential.predict_batch(
            batch, stress=any(periodic), uncertainty=uncertainty
        )
        energy, stress = prediction.energy.mean.tolist(), prediction.stress
        energies, forces = _array(prediction.atomic_energy), _array(prediction.forces.mean)
        stresses = None if stress is None else _array(stress.mean)
        known = _Sigmas.of(prediction) if uncertainty == "full" else None
        gaps = [None] * len(geometries) if known is None else self._gaps(geometries)
        found, end = [], 0
        for place, geometry in enumerate(geometries):
            start, end = end, end + len(geometry.numbers)
            rows, virial = slice(start, end), None
            if stresses is not None and periodic[place]:
                virial = -_volume(geometry.cell) * stresses[place][_VOIGT]
            sigma = None if known is None else self._sigma(known, place, rows, gaps[place])
            found.append(Evaluated(energy[place], energies[rows], forces[rows], virial, sigma))
        return found

    @property
    def shape(self) -> ErrorDistribution | None:
        """Of the force errors, where a calibration found another than the Gaussian."""
        calibration = self.potential.calibration
        forces = None if calibration is None else calibration.forces
        return None if forces is None else forces.shape

    def _gaps(self, geometries: Sequence[Geometry]) -> Sequence[Gap | None]:
        """The widest gap of each structure; None where the rule does not watch distances."""
        known, rule = self.potential.distances, self.rule
        if known is None or rule is None or rule.gap is None:
            return [None] * len(geometries)
        if len(geometries) == 1:
            return [self.neighbours.widest_gap(known)]
        ends, lengths = self._together.pairs()
        gaps, first = [], 0
        for geometry in geometries:
            last = first + len(geometry.numbers)
            here = (ends[0] >= first) & (ends[0] < last)
            gaps.append(known.gap_among(geometry.numbers, ends[:, here] - first, lengths[here]))
            first = last
        return gaps

    def _sigma(self, known: _Sigmas, place: int, rows: slice, gap: Gap | None) -> Sigma:
        covariance = known.covariance[rows]
        risk, broken = 0.0, False
        if self.rule is None:
            found = spreads(covariance)
        else:
            found, likely = self.rule.assess(covariance, self.shape)
            risk, broken = likely.probability, self.rule.broken(likely, gap)
            if not self._modelled:  # a matter of the potential, not of the structure
                self.rule.check_sigma(covariance, self.potential)
                self._modelled = True
        return Sigma(
            energy=known.energy[place],
            energies=known.energies[rows],
            forces=found.components,
            covariance=covariance,
            level=found.level,
            worst=found.worst,
            risk=risk,
            gap=0.0 if gap is None else gap.size,
            broken=broken,
        )


class _Sigmas(NamedTuple):
    """What a prediction says of itself, S structures and N atoms."""

    energy: list[float]  # S of them, σ
    energies: Array  # (N,) σ
    covariance: Array  # (N, 3, 3)

    @classmethod
    def of(cls, prediction: Prediction) -> _Sigmas:
        covariance, atomic = _array(prediction.forces.total), prediction.atomic_epistemic
        return cls(
            np.sqrt(_array(prediction.energy.total)).tolist(),
            np.zeros(len(covariance)) if atomic is None else np.sqrt(_array(atomic)),
            covariance,
        )


def _array(value: torch.Tensor) -> Array:
    """Where it is on the CPU already, without the detours of `force`."""
    array: Array = value.numpy() if value.is_cpu else value.numpy(force=True)
    return array


def _volume(cell: Array) -> float:
    (a, b, c), (d, e, f), (g, h, i) = cell.tolist()
    return abs(float(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)))
