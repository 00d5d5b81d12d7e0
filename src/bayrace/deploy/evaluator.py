"""What every simulation code asks: energy, forces and virial of structures, and how sure they are.

LAMMPS, i-PI and OpenMM differ in how they hand over positions and take results. What is between is
here, once: neighbours, the prediction, the probability of the stop rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.core.prediction import ErrorDistribution, Prediction
from bayrace.data.distances import Gap
from bayrace.deploy.verlet import Geometry, VerletList
from bayrace.nn.spreads import Spreads, spreads
from bayrace.potential.potential import Potential, refuse_property
from bayrace.predict.predict import Uncertainty

if TYPE_CHECKING:  # the rule is handed in from above
    from bayrace.simulate.stop import StopRule

Array = NDArray[np.float64]
_VOIGT = np.array([[0, 5, 4], [5, 1, 3], [4, 3, 2]])  # of xx, yy, zz, yz, xz, xy


@dataclass(frozen=True, eq=False)
class Sigma:
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


@dataclass(frozen=True, eq=False)
class Evaluated:
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
        skin: float = 0.5,
    ) -> None:
        if isinstance(potential, Potential):
            where = None if str(device) == "auto" else device
            self.potential = potential.to(device=where, dtype=dtype)
        else:
            self.potential = Potential.load(potential, device=device, dtype=dtype)
        refuse_property(self.potential, "an engine")
        if rule is not None:
            rule.check_distances(self.potential)
        self.rule = rule
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
        whole = _whole(prediction, uncertain=uncertainty == "full")
        gaps = self._gaps(geometries) if uncertainty == "full" else [None] * len(geometries)
        found, end = [], 0
        for place, (geometry, gap) in enumerate(zip(geometries, gaps, strict=True)):
            start, end = end, end + len(geometry.numbers)
            rows = slice(start, end)
            stress = whole.stress[place] if whole.stress is not None and periodic[place] else None
            found.append(
                Evaluated(
                    energy=whole.energy[place],
                    energies=whole.energies[rows],
                    forces=whole.forces[rows],
                    virial=None if stress is None else -_volume(geometry.cell) * stress[_VOIGT],
                    sigma=self._sigma(whole.sigmas, place, rows, gap),
                )
            )
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
            ends, lengths = self.neighbours.pairs()
            return [known.gap_among(geometries[0].numbers, ends, lengths)]
        ends, lengths = self._together.pairs()
        gaps, first = [], 0
        for geometry in geometries:
            last = first + len(geometry.numbers)
            here = (ends[0] >= first) & (ends[0] < last)
            gaps.append(known.gap_among(geometry.numbers, ends[:, here] - first, lengths[here]))
            first = last
        return gaps

    def _sigma(
        self, whole: _Sigmas | None, place: int, rows: slice, gap: Gap | None
    ) -> Sigma | None:
        if whole is None:
            return None
        values, components, level, worst = (each[rows] for each in whole.spreads)
        covariance, largest = whole.covariance[rows], float(worst.max())
        risk, broken = 0.0, False
        if self.rule is not None:
            if largest == 0.0:
                self.rule.check_sigma(covariance, self.potential)
            found = self.rule.risk_of(values, self.shape)
            risk, broken = found.probability, self.rule.broken(found, gap)
        return Sigma(
            energy=whole.energy[place],
            energies=whole.energies[rows],
            forces=components,
            covariance=covariance,
            level=level,
            worst=worst,
            risk=risk,
            gap=0.0 if gap is None else gap.size,
            broken=broken,
        )


class _Sigmas(NamedTuple):
    """Standard deviations of a batch of S structures and N atoms."""

    energy: list[float]  # S of them
    energies: Array  # (N,)
    covariance: Array  # (N, 3, 3)
    spreads: Spreads


class _Whole(NamedTuple):
    """A prediction of S structures and N atoms as NumPy has it."""

    energy: list[float]  # S of them
    energies: Array  # (N,)
    forces: Array  # (N, 3)
    stress: Array | None  # (S, 6)
    sigmas: _Sigmas | None


def _whole(prediction: Prediction, *, uncertain: bool) -> _Whole:
    sigmas, stress = None, prediction.stress
    if uncertain:
        covariance, atomic = _array(prediction.forces.total), prediction.atomic_epistemic
        sigmas = _Sigmas(
            np.sqrt(_array(prediction.energy.total)).tolist(),
            np.zeros(len(covariance)) if atomic is None else np.sqrt(_array(atomic)),
            covariance,
            spreads(covariance),
        )
    return _Whole(
        prediction.energy.mean.tolist(),
        _array(prediction.atomic_energy),
        _array(prediction.forces.mean),
        None if stress is None else _array(stress.mean),
        sigmas,
    )


def _array(value: torch.Tensor) -> Array:
    """Where it is on the CPU already, without the detours of `force`."""
    array: Array = value.numpy() if value.is_cpu else value.numpy(force=True)
    return array


def _volume(cell: Array) -> float:
    (a, b, c), (d, e, f), (g, h, i) = cell.tolist()
    return abs(float(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)))
