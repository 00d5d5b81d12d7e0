"""ASE calculator of one electronic state out of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import all_changes

from bayrace.data.frame import frame_from_atoms
from bayrace.deploy.ase import begin
from bayrace.potential.states import States


class StateCalculator(AseCalculator):
    """`atoms.calc = StateCalculator(States.load([...], diabatic=True), state=1)`.

    Results of the chosen state in eV and eV/Å: `energy`, `forces` (n, 3), their standard deviations
    `energy_uncertainty` and `forces_uncertainty`, and `forces_covariance` (n, 3, 3). Of all states:
    `energies_of_states` (S,), `forces_of_states` (S, n, 3), and `coupling` (n, 3), 1/Å, of two
    composed ones.
    """

    implemented_properties = [  # noqa: RUF012 - ASE declares it so
        *("energy", "free_energy", "forces", "energy_uncertainty", "forces_uncertainty"),
        *("forces_covariance", "energies_of_states", "forces_of_states", "coupling"),
    ]

    def __init__(
        self, states: States, *, state: int, uncertainty: bool = True, **keywords: Any
    ) -> None:
        super().__init__(**keywords)  # type: ignore[no-untyped-call]
        if not 0 <= state < states.count:
            raise ValueError(f"state={state}: there are {states.count} states, counted from 0")
        self.states, self.state, self.uncertainty = states, state, uncertainty

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Fill `results`."""
        structure = begin(self, atoms, properties, system_changes)
        frame = frame_from_atoms(structure, keys=None)
        told = self.states.predict([frame], uncertainty=self.uncertainty)
        energy = float(told.energies[0, self.state])
        self.results = {
            "energy": energy,
            "free_energy": energy,
            "forces": -told.gradients[0, self.state],
            "energies_of_states": told.energies[0],
            "forces_of_states": -told.gradients[0],
        }
        if told.coupling is not None:
            self.results["coupling"] = told.coupling[0]
        if self.uncertainty:
            covariance = told.gradients_covariance[0, self.state]
            spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2).clip(min=0.0))
            deviation = float(np.sqrt(told.energies_variance[0, self.state]))
            self.results |= {
                "energy_uncertainty": deviation,
                "forces_uncertainty": spread,
                "forces_covariance": covariance,
            }
