"""Learnt states as surfaces to hop between, with the rule that stops what cannot be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from ase import units
from ase.data import atomic_masses

from bayrace.data.frame import Frame
from bayrace.potential.states import States
from bayrace.simulate.hopping.surfaces import Array, Point, Whole, antisymmetric
from bayrace.simulate.stop import StopRule

HBAR = units._hbar / units._e * 1e15  # eV fs
DALTON = units._amu / units._e * 1e10  # eV fs²/Å²


@dataclass(frozen=True, eq=False)
class LearntSurfaces:
    """Potentials as `Surfaces`, in eV, Å and fs."""

    states: States
    frame: Frame  # whose atoms move
    rule: StopRule | None = None  # on what is known of the forces of the active state

    @property
    def masses(self) -> Array:
        """Of each coordinate, eV fs²/Å²."""
        masses: Array = np.repeat(atomic_masses[self.frame.numbers], 3) * DALTON
        return masses

    def __call__(self, positions: Array, active: Whole) -> Point:
        """States at these positions; trusted where the rule does not stop."""
        shape = (len(self.frame.numbers), 3)
        frames = [replace(self.frame, positions=x.reshape(shape), index=i)
                  for i, x in enumerate(positions)]  # fmt: skip
        told = self.states.predict(frames, uncertainty=self.rule is not None)
        rows = np.arange(len(positions))
        gradient = told.gradients[rows, active].reshape(len(positions), -1)
        couplings = None
        if told.coupling is not None:
            couplings = antisymmetric(told.coupling.reshape(len(positions), -1))
        trusted = None
        if self.rule is not None:
            covariance = told.trust[rows, active]
            if not covariance.any():
                raise ValueError(
                    "these potentials predict no uncertainty of forces, so a stop rule would never "
                    "act; train them with loss.kind nll_jef or with a posterior, or switch the "
                    "rule off (--no-rule)"
                )
            trusted = np.array([not self.rule.broken(self.rule.risk(c)) for c in covariance])
        return Point(told.energies, gradient, couplings, free_sign=True, trusted=trusted)
