"""OpenMM: a potential as a `PythonForce`, for a whole system or for its machine-learned part.

    force = openmm_force(Evaluator("model.bayrace"), topology)     # all atoms, or with
    system.addForce(force.force)                                    # atoms=[0, 1, 2] a solute

In a mixed system the atoms of the potential must not interact among each other by the force field
as well: `without_mm_inside` removes that, and what is between them and the rest stays (mechanical
embedding). `force.last` holds σ and the probability of the stop rule of the last evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ase.units import kJ, mol, nm
from numpy.typing import NDArray

from bayrace.deploy.evaluator import Evaluated, Evaluator
from bayrace.deploy.verlet import Geometry

_ENERGY = mol / kJ  # kJ/mol of an eV
_FORCE = _ENERGY * nm  # kJ/mol/nm of an eV/Å


class StopRuleBrokenError(ValueError):
    """Raised inside a step where the rule says to stop; `step` of the integrator passes it on."""


class OpenMMForce:
    """What OpenMM calls with the state of the atoms."""

    def __init__(
        self,
        evaluator: Evaluator,
        numbers: NDArray[np.int64],
        *,
        periodic: bool,
        uncertainty_every: int,
    ) -> None:
        if uncertainty_every < 1:
            raise ValueError(f"uncertainty_every={uncertainty_every}: give 1 or more evaluations")
        self.evaluator = evaluator
        self.evaluations = 0
        self.last: Evaluated | None = None
        """The last evaluation that had uncertainties."""
        self._numbers, self._pbc = numbers, np.full(3, periodic)
        self._uncertainty_every = uncertainty_every
        self.force: Any = None

    def __call__(self, state: Any) -> tuple[float, NDArray[np.float64]]:
        """Energy in kJ/mol and forces in kJ/mol/nm."""
        positions = np.asarray(state.getPositions(asNumpy=True)._value, dtype=np.float64) * nm
        cell = np.zeros((3, 3))
        if self._pbc.all():
            cell = np.asarray(state.getPeriodicBoxVectors(asNumpy=True)._value) * nm
        look = self.evaluations % self._uncertainty_every == 0
        found = self.evaluator(
            Geometry(self._numbers, positions, cell, self._pbc),
            uncertainty="full" if look else "none",
        )
        self.evaluations += 1
        if look:
            self.last = found
            self._obey(found)
        return found.energy * _ENERGY, found.forces * _FORCE

    def _obey(self, found: Evaluated) -> None:
        rule, sigma = self.evaluator.rule, found.sigma
        if rule is None or sigma is None or rule.action != "stop" or not sigma.broken:
            return
        raise StopRuleBrokenError(
            f"evaluation {self.evaluations}: P(force error > {rule.max_force_error:g} eV/Å) is "
            f"{sigma.risk:.3g}, above {rule.probability:g}; the forces can no longer be trusted"
        )


def openmm_force(
    evaluator: Evaluator,
    topology: Any,
    *,
    atoms: Sequence[int] | None = None,
    periodic: bool = False,
    uncertainty_every: int = 1,
) -> OpenMMForce:
    """A force for the atoms of an OpenMM topology, or for some of them.

    `.force` is what `system.addForce` takes. With `periodic` the box is that of the context.
    Uncertainties are computed at every `uncertainty_every`-th evaluation.
    """
    try:
        from openmm import PythonForce
    except ImportError as error:
        raise ValueError("OpenMM is not installed; pip install 'bayrace[engines]'") from error
    elements = [atom.element for atom in topology.atoms()]
    chosen = list(range(len(elements))) if atoms is None else [int(atom) for atom in atoms]
    if (
        not chosen
        or len(set(chosen)) < len(chosen)
        or not 0 <= min(chosen) <= max(chosen) < len(elements)
    ):
        raise ValueError(
            f"atoms={chosen[:5]}...: give different places of 0 to {len(elements) - 1}"
        )
    unknown = next((place for place in chosen if elements[place] is None), None)
    if unknown is not None:
        raise ValueError(f"atom {unknown} has no element; virtual sites cannot be predicted")
    numbers = np.array([elements[place].atomic_number for place in chosen], dtype=np.int64)
    compute = OpenMMForce(
        evaluator, numbers, periodic=periodic, uncertainty_every=uncertainty_every
    )
    compute.force = PythonForce(compute)
    compute.force.setUsesPeriodicBoundaryConditions(periodic)
    if atoms is not None:
        compute.force.setParticles(chosen)
    return compute


def without_mm_inside(system: Any, atoms: Sequence[int]) -> None:
    """Remove what a force field says of interactions among `atoms`, in place.

    Bonds, angles and torsions that lie within them, and constraints; nonbonded interactions of
    their pairs become exceptions of zero. Other forces are refused, as nobody can tell.
    """
    from openmm import (
        CMMotionRemover,
        HarmonicAngleForce,
        HarmonicBondForce,
        NonbondedForce,
        PeriodicTorsionForce,
        PythonForce,
    )

    inside = {int(atom) for atom in atoms}
    for force in system.getForces():
        if isinstance(force, HarmonicBondForce):
            _silence(force, "Bond", 2, inside, last=(-1,))
        elif isinstance(force, HarmonicAngleForce):
            _silence(force, "Angle", 3, inside, last=(-1,))
        elif isinstance(force, PeriodicTorsionForce):
            _silence(force, "Torsion", 4, inside, last=(-1,))
        elif isinstance(force, NonbondedForce):
            ordered = sorted(inside)
            for place, first in enumerate(ordered):
                for second in ordered[place + 1 :]:
                    force.addException(first, second, 0.0, 1.0, 0.0, True)
        elif not isinstance(force, CMMotionRemover | PythonForce):
            raise ValueError(
                f"{type(force).__name__}: its interactions within the atoms of the potential "
                "cannot be removed; take it out of the system first"
            )
    for constraint in reversed(range(system.getNumConstraints())):
        first, second, _ = system.getConstraintParameters(constraint)
        if first in inside and second in inside:
            system.removeConstraint(constraint)


def _silence(force: Any, kind: str, count: int, inside: set[int], *, last: tuple[int, ...]) -> None:
    """Set the strength of terms whose atoms are all inside to zero."""
    for term in range(getattr(force, f"getNum{kind}s")()):
        parameters = list(getattr(force, f"get{kind}Parameters")(term))
        if set(parameters[:count]) <= inside:
            for place in last:
                parameters[place] = parameters[place] * 0
            getattr(force, f"set{kind}Parameters")(term, *parameters)
