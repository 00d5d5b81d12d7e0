"""ASE calculator: energies, forces and stress with their uncertainties."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import RLock
from typing import Any, Literal

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import PropertyNotImplementedError, all_changes
from ase.outputs import Properties, all_outputs

from bayrace.core.prediction import Prediction, Uncertain
from bayrace.deploy.spreads import KINDS, spreads
from bayrace.deploy.verlet import SKIN, Geometry, VerletList
from bayrace.potential.opened import opened
from bayrace.potential.potential import Potential, refuse_property
from bayrace.predict.predict import Uncertainty

_QUANTITIES = ("energy", "forces", "stress")


class Calculator(AseCalculator):
    """Use a potential in ASE: `atoms.calc = bayrace.Calculator("model.bayrace")`.

    Results, in eV, Å, eV/Å and eV/Å³: `energy`, `free_energy` (the same), `energies` (n,),
    `forces` (n, 3), and for cells periodic in all directions `stress` (6,) in Voigt order.

    With `uncertainty=True` they also carry, for each of energy, forces and stress,
    `*_uncertainty` (total), `*_aleatoric` (noise) and `*_epistemic` (disagreement of the
    posterior's members). All of these are STANDARD DEVIATIONS of the shape of the quantity and in
    its unit. `forces_covariance` (n, 3, 3), (eV/Å)², is the total COVARIANCE of each atom's force.
    `energies_epistemic` (n,) says how little the training data fix the energy of each atom, where
    the posterior knows.
    A potential without noise heads has zero aleatoric, one with a single member zero epistemic
    uncertainty: zero there means "not modelled", not "exact". With `uncertainty="energy"` a
    posterior with a closed form (LLPR, shallow ensembles, Laplace) computes only that of the
    energy, which is much cheaper. All are calibrated where the potential is.

    `potential` is a file or a Potential. `device="auto"` loads a file to a CUDA device if there is
    one, else to the CPU, and leaves a Potential where it is. `dtype` is "float32", "float64" or
    None for that of the potential. `skin` (Å) widens the neighbour list so that it can be reused
    until atoms have moved half of it; it changes the speed, never the results.
    """

    implemented_properties = [  # noqa: RUF012 - ASE declares it so
        *("energy", "free_energy", "energies", "forces", "stress", "forces_covariance"),
        "energies_epistemic",
        *(f"{quantity}_{kind}" for quantity in _QUANTITIES for kind in KINDS),
    ]

    def __init__(
        self,
        potential: str | Path | Potential,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype | None = None,
        skin: float = SKIN,
        uncertainty: bool | Literal["energy"] = True,
        **keywords: Any,
    ) -> None:
        super().__init__(**keywords)  # type: ignore[no-untyped-call]
        self._lock = RLock()
        self._before: Atoms | None = None  # while a property is asked for: the last structure
        self.potential = opened(potential, device=device, dtype=dtype)
        refuse_property(self.potential, "a calculator")
        self.uncertainty: Uncertainty = (
            "energy" if uncertainty == "energy" else "full" if uncertainty else "none"
        )
        self.neighbours = VerletList(
            elements=self.potential.elements,
            cutoff=self.potential.model.cutoff,
            skin=skin,
            device=self.potential.device,
        )

    def get_property(
        self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True
    ) -> Any:
        """One property; calls from several threads wait for each other, as they share results."""
        ask: Any = super().get_property  # ASE has no types
        with self._lock:
            self._before = self.atoms
            try:
                return ask(name, atoms, allow_calculation)
            finally:
                self._before = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which belongs to its process."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """With a lock of its own."""
        vars(self).update(state, _lock=RLock())

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Fill `results` with everything the potential says of `atoms`."""
        structure = begin(self, atoms, properties, system_changes, before=self._before)
        stress = bool(structure.pbc.all())
        self._refuse(properties, structure)
        batch = self.neighbours.graph(geometry_of(structure), dtype=self.potential.dtype)
        prediction = self.potential.predict_batch(
            batch, stress=stress, uncertainty=self.uncertainty
        )
        self.results = _means(prediction)
        if self.uncertainty != "none":
            self.results |= _uncertainties(prediction, self._known)

    def check_state(self, atoms: Atoms, tol: float = 0.0) -> list[str]:  # noqa: ARG002 - ASE's
        """What changed since the last calculation; exactly, which is also the quickest."""
        held = self.atoms
        if held is None:
            return list(all_changes)
        pairs = {
            "positions": (held.positions, atoms.positions),
            "numbers": (held.numbers, atoms.numbers),
            "cell": (held.cell.array, atoms.cell.array),
            "pbc": (held.pbc, atoms.pbc),
        }
        return [name for name, (old, new) in pairs.items() if old.tobytes() != new.tobytes()]

    def export_properties(self) -> Properties:
        """Results that ASE has a definition for; it refuses all others."""
        known = {name: value for name, value in self.results.items() if name in all_outputs}
        return Properties(known)

    def _refuse(self, properties: Sequence[str], atoms: Atoms) -> None:
        for name in properties:
            if name.startswith("stress") and not atoms.pbc.all():
                raise PropertyNotImplementedError(
                    f"{name} needs a cell periodic in all three directions, but "
                    f"pbc={atoms.pbc.tolist()}; set atoms.pbc = True for a bulk system"
                )
            quantity = name.split("_")[0]
            if name.endswith((*KINDS, "covariance")) and quantity not in self._known:
                raise PropertyNotImplementedError(
                    f"{name} was switched off; make the Calculator with uncertainty=True"
                )

    @property
    def _known(self) -> tuple[str, ...]:
        """The quantities whose uncertainty is computed."""
        return {"full": _QUANTITIES, "energy": ("energy",), "none": ()}[self.uncertainty]


def begin(
    calculator: AseCalculator,
    atoms: Atoms | None,
    properties: Sequence[str],
    changes: Sequence[str],
    *,
    before: Atoms | None = None,
) -> Atoms:
    """What every calculation starts with: ASE's own records, and the structure that is meant.

    Where nothing but positions has changed since the copy `before`, they are written into it: ASE
    copies everything that atoms may have, which takes long beside a few dozen of them.
    """
    if before is not None and atoms is not None and list(changes) == ["positions"]:
        before.positions[:] = atoms.positions
        calculator.atoms = before
        return atoms
    AseCalculator.calculate(calculator, atoms, properties, changes)  # type: ignore[no-untyped-call]
    structure: Atoms | None = calculator.atoms if atoms is None else atoms
    if structure is None:
        raise ValueError("calculate() without atoms; pass the structure to compute")
    return structure


def geometry_of(atoms: Atoms) -> Geometry:
    """Species, positions and cell as plain arrays."""
    return Geometry(
        numbers=atoms.numbers.astype(np.int64),
        positions=atoms.positions.astype(np.float64),
        cell=np.array(atoms.cell, dtype=np.float64),
        pbc=np.array(atoms.pbc, dtype=np.bool_),
    )


def _means(prediction: Prediction) -> dict[str, Any]:
    energy = float(prediction.energy.mean[0])
    results = {
        "energy": energy,
        "free_energy": energy,
        "energies": _array(prediction.atomic_energy),
        "forces": _array(prediction.forces.mean),
    }
    if prediction.stress is not None:
        results["stress"] = _array(prediction.stress.mean[0])
    return results


def _uncertainties(prediction: Prediction, known: Sequence[str]) -> dict[str, Any]:
    """Standard deviations of the `known` quantities by name, and the force covariance."""
    results: dict[str, Any] = {}
    if "forces" in known:
        results["forces_covariance"] = _array(prediction.forces.total)
    if prediction.atomic_epistemic is not None:
        results["energies_epistemic"] = _array(prediction.atomic_epistemic.sqrt())
    for quantity in known:
        value: Uncertain | None = getattr(prediction, quantity)
        if value is not None:
            results |= spreads(quantity, value, slice(None) if quantity == "forces" else 0)
    return results


def _array(value: torch.Tensor) -> Any:
    return value.numpy(force=True)
