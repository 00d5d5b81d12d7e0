"""OpenMM's PythonForce against the ASE calculator, alone and beside a force field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ase import Atoms, units
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

from bayrace.data.frame import frame_from_atoms
from bayrace.deploy.ase import Calculator
from bayrace.deploy.evaluator import Evaluator
from bayrace.deploy.openmm import OpenMMForce, StopRuleBrokenError, openmm_force, without_mm_inside
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings, simulate
from bayrace.simulate.stop import StopRule

from .engines import ELEMENTS, by_ase, late_rule, structures

openmm = pytest.importorskip("openmm", reason="needs OpenMM: pip install 'bayrace[engines]'")
unit = pytest.importorskip("openmm.unit")
EV = units.mol / units.kJ  # kJ/mol


@pytest.fixture(scope="module")
def random_potential(make_potential: Callable[..., Potential]) -> Potential:
    return make_potential(seeds=(0, 1), elements=ELEMENTS)


def topology_of(atoms: Atoms) -> Any:
    from openmm.app import Element, Topology

    topology = Topology()
    residue = topology.addResidue("X", topology.addChain())
    for number, atomic in enumerate(atoms.numbers):
        topology.addAtom(str(number), Element.getByAtomicNumber(int(atomic)), residue)
    return topology


def reduced(atoms: Atoms) -> Atoms:
    """In the form OpenMM wants cells to have."""
    atoms = atoms.copy()
    if atoms.pbc.all():
        from openmm.app.internal.unitcell import reducePeriodicBoxVectors

        cell, rotation = atoms.cell.standard_form()
        atoms.set_positions(atoms.positions @ rotation.T)
        vectors = reducePeriodicBoxVectors(cell.array * 0.1 * unit.nanometer)
        atoms.set_cell(np.array(vectors.value_in_unit(unit.angstrom)))
    return atoms


def context_of(system: Any, atoms: Atoms, *, timestep: float = 1.0) -> Any:
    if atoms.pbc.all():
        system.setDefaultPeriodicBoxVectors(*(atoms.cell.array * 0.1))
    platform = openmm.Platform.getPlatformByName("Reference")
    integrator = openmm.VerletIntegrator(timestep * unit.femtosecond)
    context = openmm.Context(system, integrator, platform)
    context.setPositions(atoms.positions * 0.1)
    return context


def machine_learned(
    potential: Potential, atoms: Atoms, *, rule: StopRule | None = None
) -> tuple[Any, OpenMMForce]:
    system = openmm.System()
    for mass in atoms.get_masses():
        system.addParticle(mass)
    evaluator = Evaluator(potential, rule=rule)
    force = openmm_force(evaluator, topology_of(atoms), periodic=bool(atoms.pbc.all()))
    system.addForce(force.force)
    return system, force


@pytest.mark.parametrize("name", structures())
def test_energy_forces_and_sigma(random_potential: Potential, name: str) -> None:
    atoms = reduced(structures()[name])
    system, force = machine_learned(random_potential, atoms)
    state = context_of(system, atoms).getState(getEnergy=True, getForces=True)
    expected = by_ase(random_potential, atoms)
    energy = state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole) / EV
    assert energy == pytest.approx(expected["energy"], rel=1e-9)
    forces = state.getForces(asNumpy=True)._value / EV / 10
    np.testing.assert_allclose(forces, expected["forces"], atol=1e-9)
    assert force.last is not None
    assert force.last.sigma is not None
    assert force.last.sigma.energy == pytest.approx(expected["energy_uncertainty"], rel=1e-9)
    np.testing.assert_allclose(
        force.last.sigma.covariance, expected["forces_covariance"], rtol=1e-7, atol=1e-12
    )


def test_nve_conserves_as_ase_does(potential: Potential, alloy: Atoms) -> None:
    atoms = alloy * (2, 1, 1)
    atoms.rattle(0.02, seed=3)
    thermalize_momenta(atoms, 300.0, rng=np.random.default_rng(5), exact_temperature=True)
    system, _ = machine_learned(potential, atoms)
    context = context_of(system, atoms)
    atoms.calc = Calculator(potential)
    # OpenMM's Verlet is leapfrog: its velocities are half a step behind
    half = (
        atoms.get_velocities() - 0.5 * units.fs * atoms.get_forces() / atoms.get_masses()[:, None]
    )
    context.setVelocities(half * 0.1 * units.fs * 1000)
    with VelocityVerlet(atoms, units.fs) as dynamics:
        for _ in range(20):
            context.getIntegrator().step(1)
            dynamics.run(1)
    state = context.getState(getPositions=True)
    positions = state.getPositions(asNumpy=True)._value * 10
    np.testing.assert_allclose(positions, atoms.positions, atol=1e-5)


def test_a_hot_run_ends_where_ours_does(potential: Potential, alloy: Atoms) -> None:
    settings = DynamicsSettings("nve", temperature=3000.0, steps=60, timestep=1.0, seed=1)
    begin = alloy * (2, 1, 1)
    first, rule = late_rule(potential, begin, settings)
    *_, last = simulate(potential, frame_from_atoms(begin, keys=None), settings, rule=rule)
    system, force = machine_learned(potential, first, rule=rule)
    context = context_of(system, first)
    first.calc = Calculator(potential)
    half = (
        first.get_velocities() - 0.5 * units.fs * first.get_forces() / first.get_masses()[:, None]
    )
    context.setVelocities(half * 0.1 * units.fs * 1000)
    with pytest.raises(Exception, match="can no longer be trusted"):
        context.getIntegrator().step(60)
    assert abs(force.evaluations - 1 - last.step) <= 1


def test_beside_a_force_field(random_potential: Potential) -> None:
    """A molecule by the potential and charges around it: energies add up, nothing counts twice."""
    solute = structures()["molecule"]
    everything = solute + Atoms("HH", positions=[[6.0, 0, 0], [0, 6.0, 0]])
    inside = range(len(solute))

    def classical() -> Any:
        system = openmm.System()
        charges = openmm.NonbondedForce()
        for number, mass in enumerate(everything.get_masses()):
            system.addParticle(mass)
            charges.addParticle(0.1 * (-1) ** number, 0.2, 0.3)
        bonds = openmm.HarmonicBondForce()
        bonds.addBond(0, 1, 0.1, 5000.0)
        bonds.addBond(9, 10, 0.1, 5000.0)
        system.addForce(charges)
        system.addForce(bonds)
        system.addConstraint(0, 2, 0.1)
        return system

    def energy(system: Any) -> float:
        state = context_of(system, everything).getState(getEnergy=True)
        return float(state.getPotentialEnergy()._value)

    outside = classical()
    without_mm_inside(outside, inside)
    assert outside.getNumConstraints() == 0
    rest = energy(outside)
    mixed = classical()
    without_mm_inside(mixed, inside)
    evaluator = Evaluator(random_potential)
    force = openmm_force(evaluator, topology_of(everything), atoms=list(inside))
    mixed.addForce(force.force)
    expected = by_ase(random_potential, solute)["energy"]
    assert (energy(mixed) - rest) / EV == pytest.approx(expected, rel=1e-9)
    assert rest != pytest.approx(energy(classical()))
    # what is left is only between inside and outside, and outside: far away it is the bond alone
    far = everything.copy()
    far.positions[9:] += 1e5
    state = context_of(outside, far).getState(getEnergy=True)
    stretch = np.linalg.norm(far.positions[9] - far.positions[10]) * 0.1 - 0.1
    alone = 0.5 * 5000.0 * stretch**2
    assert state.getPotentialEnergy()._value == pytest.approx(alone, rel=1e-2)


def test_what_cannot_be_is_refused(random_potential: Potential) -> None:
    topology = topology_of(structures()["molecule"])
    with pytest.raises(ValueError, match="give different places of 0 to 8"):
        openmm_force(Evaluator(random_potential), topology, atoms=[0, 9])
    system = openmm.System()
    system.addForce(openmm.CustomBondForce("r"))
    with pytest.raises(ValueError, match="CustomBondForce: its interactions"):
        without_mm_inside(system, [0])
    assert issubclass(StopRuleBrokenError, ValueError)
