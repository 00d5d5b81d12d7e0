"""Cells of every shape: the same crystal, however it is described, has the same results."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms

from bayrace.deploy.ase import Calculator
from bayrace.models.race.network import Race
from bayrace.potential.potential import Potential
from bayrace.testing.examples import EXAMPLES

Make = Callable[..., Potential]
CELL = np.array([[5.0, 0.0, 0.0], [1.2, 4.6, 0.0], [-0.7, 0.9, 5.3]])


def default(make_potential: Make, dtype: torch.dtype = torch.float64) -> Potential:
    """With the posterior that a training ends with."""
    plain = make_potential(dtype=dtype)
    model = Race(plain.spec)
    return replace(plain, posterior=EXAMPLES["distance"](model, model.init(0, dtype=dtype)))


def crystal(pbc: tuple[bool, bool, bool] = (True, True, True)) -> Atoms:
    places = np.random.default_rng(1).uniform(size=(2, 3)) * 0.2
    moves = np.array([[0.0, 0.0, 0.0], [0.5, 0.1, 0.4], [0.2, 0.6, 0.5]])
    places = np.concatenate([places + move for move in moves])
    return Atoms("OHHCOC", cell=CELL, scaled_positions=places, pbc=pbc)


CHANGES = {
    "skewed": np.array([[1, 0, 0], [3, 1, 0], [-2, 4, 1]]),
    "left-handed": np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
    "inverted": -np.eye(3, dtype=int),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_vectors_of_the_same_lattice(make_potential: Make, name: str) -> None:
    potential = default(make_potential)
    one, other = crystal(), crystal()
    other.set_cell(CHANGES[name] @ CELL)
    for atoms in (one, other):
        atoms.calc = Calculator(potential)
    assert other.get_potential_energy() == pytest.approx(one.get_potential_energy(), abs=1e-9)
    np.testing.assert_allclose(other.get_forces(), one.get_forces(), atol=1e-9)
    np.testing.assert_allclose(other.get_stress(), one.get_stress(), atol=1e-10)
    for key in ("energy_uncertainty", "forces_uncertainty", "stress_uncertainty"):
        np.testing.assert_allclose(other.calc.results[key], one.calc.results[key], rtol=1e-6)


@pytest.mark.parametrize("pbc", [(True, True, False), (False, True, False), (True, False, True)])
def test_mixed_periodicity_is_a_row_of_copies(
    make_potential: Make, pbc: tuple[bool, bool, bool]
) -> None:
    """Twice the cell along the periodic directions has twice the energy and the same forces."""
    potential, atoms = default(make_potential), crystal(pbc)
    times = [2 if periodic else 1 for periodic in pbc]
    more = atoms.repeat(times)
    for each in (atoms, more):
        each.calc = Calculator(potential)
    count = math.prod(times)
    assert more.get_potential_energy() == pytest.approx(count * atoms.get_potential_energy())
    np.testing.assert_allclose(
        more.get_forces(), np.tile(atoms.get_forces(), (count, 1)), atol=1e-9
    )


def test_single_precision_far_below_zero(make_potential: Make) -> None:
    """At a million eV a float32 knows sixteenths of an eV; sums must not be made of such."""
    potential = default(make_potential, torch.float32)
    deep = replace(potential, references={1: -2e5, 6: -2e5, 8: -2e5})
    values = {}
    for name in ("float32", "float64"):
        atoms = crystal()
        atoms.calc = Calculator(deep, dtype=name)
        before = atoms.get_potential_energy()
        assert before < -1.1e6
        forces = atoms.get_forces()
        atoms.positions[0, 0] += 1e-3
        values[name] = (before, atoms.get_potential_energy() - before, forces)
    single, double = values["float32"], values["float64"]
    assert single[0] == pytest.approx(double[0], abs=1e-3)
    assert single[1] == pytest.approx(double[1], abs=2e-5)  # of a step, some meV
    np.testing.assert_allclose(single[2], double[2], atol=1e-3)


def _energy(atoms: Atoms) -> float:
    return float(atoms.get_potential_energy())


def test_calculators_travel_to_spawned_processes(make_potential: Make) -> None:
    atoms = crystal()
    atoms.calc = Calculator(default(make_potential))
    here = atoms.get_potential_energy()
    fresh = crystal()
    fresh.calc = atoms.calc
    fresh.positions[0, 0] += 5.0 * 2  # whole cells further: computed there, and the same
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_energy, fresh).result() == pytest.approx(here, abs=1e-9)
