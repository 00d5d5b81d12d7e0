"""What every simulation code asks: energy, forces and virial of structures, and how sure they are.

LAMMPS, i-PI and OpenMM differ in how they hand over positions and take results. What is between is
here, once: neighbours, the prediction, the probability of the stop rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.core.prediction import ErrorDistribution, Prediction
from bayrace.data.batch import build_graph, collate
from bayrace.data.check import check_frame
from bayrace.data.distances import Gap
from bayrace.data.frame import Frame, bare_frame
from bayrace.deploy.verlet import Geometry, VerletList
from bayrace.nn.exponentials import eigenvalues
from bayrace.potential.potential import Potential, refuse_property
from bayrace.predict.predict import Uncertainty

if TYPE_CHECKING:  # the rule is handed in from above
    from bayrace.simulate.stop import StopRule

Array = NDArray[np.float64]
Pairs = tuple[NDArray[np.int64], Array]
"""Atoms (2, p) and distances (p,), Å."""

_VOIGT = ((0, 5, 4), (5, 1, 3), (4, 3, 2))  # of xx, yy, zz, yz, xz, xy


@dataclass(frozen=True, eq=False)
class Sigma:
    """How sure a potential is of one structure of n atoms: calibrated standard deviations."""

    energy: float  # eV, total
    energies: Array  # (n,) eV, epistemic, of the energies of atoms; 0 where it is not modelled
    forces: Array  # (n, 3) eV/Å, total
    covariance: Array  # (n, 3, 3) (eV/Å)², total, of each atom's force
    worst: Array  # (n,) eV/Å, √ of the covariance's largest eigenvalue: σ in the worst direction
    risk: float  # P(|force error| > bound) of the rule; 0 without one
    gap: float  # Å, widest one of the distances; 0 where the rule does not watch them
    broken: bool  # whether the rule says to act

    @property
    def level(self) -> Array:
        """(n,) eV/Å: σ of each atom's force, root mean square of its components."""
        level: Array = np.sqrt((self.forces**2).mean(1))
        return level


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
        self.neighbours = VerletList(
            elements=self.potential.elements,
            cutoff=self.potential.model.cutoff,
            skin=skin,
            device=self.potential.device,
        )

    def __call__(self, geometry: Geometry, *, uncertainty: Uncertainty = "full") -> Evaluated:
        """Evaluate one structure, which has likely moved little since the last call."""
        batch = self.neighbours.graph(geometry, dtype=self.potential.dtype)
        prediction = self.potential.predict_batch(
            batch, stress=bool(geometry.pbc.all()), uncertainty=uncertainty
        )
        watched = self.rule is not None and self.rule.gap is not None
        pairs = self.neighbours.pairs() if watched and uncertainty == "full" else None
        return self._evaluated(prediction, 0, slice(None), geometry, uncertainty, pairs)

    def many(
        self, geometries: Sequence[Geometry], *, uncertainty: Uncertainty = "full"
    ) -> list[Evaluated]:
        """Evaluate several structures, such as the beads of a path integral, as one batch."""
        potential = self.potential
        frames = [_frame(geometry) for geometry in geometries]
        for frame in frames:
            check_frame(frame)
        model = potential.model
        graphs = [build_graph(f, elements=model.elements, cutoff=model.cutoff) for f in frames]
        batch = collate(
            graphs,
            elements_count=len(model.elements),
            dtype=potential.dtype,
            device=potential.device,
        )
        periodic = any(bool(geometry.pbc.all()) for geometry in geometries)
        prediction = potential.predict_batch(batch, stress=periodic, uncertainty=uncertainty)
        ends = np.cumsum([len(geometry.numbers) for geometry in geometries])
        return [
            self._evaluated(
                prediction, place, slice(end - len(each.numbers), end), each, uncertainty
            )
            for place, (end, each) in enumerate(zip(ends.tolist(), geometries, strict=True))
        ]

    @property
    def shape(self) -> ErrorDistribution | None:
        """Of the force errors, where a calibration found another than the Gaussian."""
        calibration = self.potential.calibration
        forces = None if calibration is None else calibration.forces
        return None if forces is None else forces.shape

    def _evaluated(
        self,
        prediction: Prediction,
        place: int,
        rows: slice,
        geometry: Geometry,
        uncertainty: Uncertainty,
        pairs: Pairs | None = None,
    ) -> Evaluated:
        virial, sigma = None, None
        if uncertainty == "full":
            sigma = self._sigma(prediction, place, rows, geometry, pairs)
        if prediction.stress is not None and geometry.pbc.all():
            stress = prediction.stress.mean[place].numpy(force=True)[np.array(_VOIGT)]
            virial = -stress * abs(np.linalg.det(geometry.cell))
        return Evaluated(
            energy=float(prediction.energy.mean[place]),
            energies=prediction.atomic_energy[rows].numpy(force=True),
            forces=prediction.forces.mean[rows].numpy(force=True),
            virial=virial,
            sigma=sigma,
        )

    def _sigma(
        self,
        prediction: Prediction,
        place: int,
        rows: slice,
        geometry: Geometry,
        pairs: Pairs | None,
    ) -> Sigma:
        covariance = prediction.forces.total[rows].numpy(force=True)
        values = eigenvalues(covariance)
        atomic = prediction.atomic_epistemic
        risk, gap, broken = 0.0, 0.0, False
        if self.rule is not None:
            self.rule.check_sigma(covariance, self.potential)
            found = self.rule.risk_of(values, self.shape)
            widest: Gap | None = None
            known = self.potential.distances
            if known is not None and self.rule.gap is not None:
                if pairs is None:
                    widest = known.gap(_frame(geometry))
                else:
                    widest = known.gap_among(geometry.numbers, *pairs)
            risk, broken = found.probability, self.rule.broken(found, widest)
            gap = 0.0 if widest is None else widest.size
        return Sigma(
            energy=float(prediction.energy.std[place]),
            energies=np.zeros(len(covariance))
            if atomic is None
            else atomic[rows].sqrt().numpy(force=True),
            forces=np.sqrt(covariance.diagonal(axis1=1, axis2=2)),
            covariance=covariance,
            worst=np.sqrt(values[:, 0].clip(min=0.0)),
            risk=risk,
            gap=gap,
            broken=broken,
        )


def _frame(geometry: Geometry) -> Frame:
    return bare_frame(
        geometry.numbers, geometry.positions, geometry.cell, geometry.pbc, source="atoms"
    )
