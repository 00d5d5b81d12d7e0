"""The calculator against finite differences, fresh lists and ASE's own simulations."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, make_supercell, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.filters import FrechetCellFilter
from ase.io.trajectory import Trajectory
from ase.md.langevin import Langevin
from ase.md.nose_hoover_chain import MTKNPT
from ase.md.nptberendsen import NPTBerendsen
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS

import bayrace
from bayrace.data.frame import DataError
from bayrace.deploy.ase import Calculator
from bayrace.posterior.point import Point
from bayrace.potential.potential import Potential

Make = Callable[..., Potential]


@pytest.fixture
def metal(alloy: Atoms, potential: Potential) -> Atoms:
    """Eight rattled atoms with a calculator, in float64."""
    atoms = alloy * (2, 1, 1)
    atoms.rattle(0.05, seed=3)
    atoms.calc = Calculator(potential)
    return atoms


@pytest.fixture
def moving(metal: Atoms, potential: Potential) -> Atoms:
    """The same with one member of the posterior, for long runs."""
    first = {name: value[0] for name, value in potential.members.items()}
    metal.calc = Calculator(replace(potential, posterior=Point(first)))
    return metal


def heated(atoms: Atoms, temperature: float) -> Atoms:
    thermalize_momenta(atoms, temperature, rng=np.random.default_rng(5), exact_temperature=True)
    return atoms


def test_threads_share_a_calculator(metal: Atoms) -> None:
    """Sixteen at a time, each with a structure of its own, get what each gets alone."""
    structures = []
    for seed in range(16):
        structures.append(metal.copy())
        structures[-1].rattle(0.03, seed=seed)
    expected = []
    for atoms in structures:
        atoms.calc = Calculator(metal.calc.potential)
        expected.append((atoms.get_potential_energy(), atoms.get_forces()))
        atoms.calc = metal.calc
    gate = threading.Barrier(len(structures))

    def ask(atoms: Atoms) -> list[tuple[float, np.ndarray]]:
        gate.wait()
        return [(atoms.get_potential_energy(), atoms.get_forces()) for _ in range(5)]

    with ThreadPoolExecutor(len(structures)) as pool:
        for found, (energy, forces) in zip(pool.map(ask, structures), expected, strict=True):
            for own_energy, own_forces in found:
                assert own_energy == pytest.approx(energy, abs=1e-9)
                np.testing.assert_allclose(own_forces, forces, atol=1e-8)


def test_a_calculator_can_be_copied_and_pickled(metal: Atoms) -> None:
    energy = metal.get_potential_energy()
    for other in (copy.deepcopy(metal.calc), pickle.loads(pickle.dumps(metal.calc))):
        atoms = metal.copy()
        atoms.calc = other
        assert atoms.get_potential_energy() == energy


def test_results_have_their_shapes(metal: Atoms) -> None:
    metal.get_potential_energy()
    shapes = {name: np.shape(value) for name, value in metal.calc.results.items()}
    expected: dict[str, tuple[int, ...]] = {
        "free_energy": (),
        "energies": (8,),
        "forces_covariance": (8, 3, 3),
        "energies_epistemic": (8,),
    }
    for quantity, shape in {"energy": (), "forces": (8, 3), "stress": (6,)}.items():
        expected[quantity] = shape
        for kind in ("uncertainty", "aleatoric", "epistemic"):
            expected[f"{quantity}_{kind}"] = shape
    assert shapes == expected
    assert set(shapes) == set(Calculator.implemented_properties)
    assert isinstance(metal.calc.results["energy"], float)
    assert isinstance(metal.calc.results["energy_uncertainty"], float)


def test_uncertainties_are_standard_deviations(metal: Atoms, potential: Potential) -> None:
    prediction = potential.predict(metal, stress=True)
    metal.get_forces()
    found = metal.calc.results
    assert found["energy_uncertainty"] ** 2 == pytest.approx(float(prediction.energy.total[0]))
    np.testing.assert_allclose(found["forces_covariance"], prediction.forces.total, rtol=1e-9)
    diagonal = np.diagonal(found["forces_covariance"], axis1=1, axis2=2)
    np.testing.assert_allclose(found["forces_uncertainty"] ** 2, diagonal)
    for quantity in ("energy", "forces", "stress"):
        parts = [np.asarray(found[f"{quantity}_{kind}"]) for kind in ("aleatoric", "epistemic")]
        assert all((part > 0).all() for part in parts)
        np.testing.assert_allclose(
            np.asarray(found[f"{quantity}_uncertainty"]) ** 2, parts[0] ** 2 + parts[1] ** 2
        )


def test_energies_agree(metal: Atoms, potential: Potential) -> None:
    energy = metal.get_potential_energy()
    assert energy == pytest.approx(float(potential.predict(metal).energy.mean[0]), abs=1e-10)
    assert metal.calc.results["free_energy"] == energy
    assert metal.get_potential_energies().sum() == pytest.approx(energy, abs=1e-10)


def test_forces_are_the_slope_of_the_energy(metal: Atoms) -> None:
    numerical = calculate_numerical_forces(metal, eps=1e-4)
    scale = np.abs(numerical).max()
    np.testing.assert_allclose(metal.get_forces(), numerical, atol=1e-6 * scale)


def test_stress_is_the_slope_of_the_energy(metal: Atoms) -> None:
    metal.set_cell(metal.cell.array @ (np.eye(3) + 0.02), scale_atoms=True)
    numerical = calculate_numerical_stress(metal, eps=1e-5)
    np.testing.assert_allclose(metal.get_stress(), numerical, atol=1e-6 * np.abs(numerical).max())


def test_forces_of_a_molecule(make_potential: Make) -> None:
    atoms = molecule("CH3CH2OH")
    atoms.calc = Calculator(make_potential())
    numerical = calculate_numerical_forces(atoms, eps=1e-4)
    scale = np.abs(numerical).max()
    np.testing.assert_allclose(atoms.get_forces(), numerical, atol=1e-6 * scale)


def test_permuted_atoms(metal: Atoms) -> None:
    energy, forces = metal.get_potential_energy(), metal.get_forces()
    spread = metal.calc.results["forces_covariance"]
    order = np.random.default_rng(0).permutation(len(metal))
    permuted = metal[order]
    permuted.calc = metal.calc
    assert permuted.get_potential_energy() == pytest.approx(energy, abs=1e-10)
    np.testing.assert_allclose(permuted.get_forces(), forces[order], atol=1e-10)
    np.testing.assert_allclose(permuted.calc.results["forces_covariance"], spread[order])


def test_supercell_is_a_multiple(metal: Atoms) -> None:
    large = make_supercell(metal, np.diag([1, 2, 2]))
    large.calc = metal.calc
    assert large.get_potential_energy() == pytest.approx(4 * metal.get_potential_energy())


def test_its_copy_of_the_atoms_follows_them(metal: Atoms) -> None:
    """Moved atoms are written into the copy; whatever else changes makes a new one."""
    metal.get_forces()
    copy = metal.calc.atoms
    assert copy is not metal
    metal.rattle(0.05, seed=1)
    assert not metal.calc.calculation_required(copy, ["forces"])
    moved = metal.get_forces()
    assert metal.calc.atoms is copy
    np.testing.assert_array_equal(copy.positions, metal.positions)
    metal.set_cell(metal.cell * 1.01)
    assert not np.allclose(metal.get_forces(), moved)
    assert metal.calc.atoms is not copy
    np.testing.assert_array_equal(metal.calc.atoms.cell.array, metal.cell.array)
    fewer = metal[:-1]
    assert len(metal.calc.get_forces(fewer)) == len(metal.calc.atoms) == len(metal) - 1


def test_skin_changes_nothing_but_speed(metal: Atoms, potential: Potential) -> None:
    metal.calc = Calculator(potential, skin=0.5)  # some steps search, most do not
    heated(metal, 600.0)
    compared: list[float] = []

    def compare() -> None:
        fresh = metal.copy()
        fresh.calc = Calculator(potential, skin=0.0)
        assert metal.get_potential_energy() == pytest.approx(
            fresh.get_potential_energy(), rel=1e-12
        )
        np.testing.assert_allclose(metal.get_forces(), fresh.get_forces(), atol=1e-11)
        np.testing.assert_allclose(metal.get_stress(), fresh.get_stress(), atol=1e-12)
        compared.append(0.0)

    dynamics = VelocityVerlet(metal, 5 * units.fs)
    dynamics.attach(compare, interval=1)
    dynamics.run(40)
    assert len(compared) == 41
    assert 1 < metal.calc.neighbours.rebuilds < 15


def test_bfgs(moving: Atoms) -> None:
    with BFGS(moving, logfile=None) as optimiser:
        assert optimiser.run(fmax=0.01, steps=100)
    assert np.abs(moving.get_forces()).max() < 0.01


def test_cell_relaxation(moving: Atoms) -> None:
    moving.set_cell(moving.cell.array * 1.02, scale_atoms=True)
    with BFGS(FrechetCellFilter(moving), logfile=None) as optimiser:
        assert optimiser.run(fmax=0.02, steps=200)
    assert np.abs(moving.get_stress()).max() < 0.02 / 10
    assert moving.calc.neighbours.rebuilds < optimiser.nsteps


def test_nve_conserves_energy(moving: Atoms) -> None:
    heated(moving, 300.0)
    totals: list[float] = []
    with VelocityVerlet(moving, 1.0 * units.fs) as dynamics:
        dynamics.attach(lambda: totals.append(moving.get_total_energy()), interval=1)
        dynamics.run(60)
    assert np.ptp(totals) < 1e-3 * len(moving)
    # halving the step divides the error of a symplectic integrator by four
    again: list[float] = []
    moving.set_momenta(-moving.get_momenta())
    with VelocityVerlet(moving, 0.5 * units.fs) as dynamics:
        dynamics.attach(lambda: again.append(moving.get_total_energy()), interval=1)
        dynamics.run(120)
    assert np.ptp(again) == pytest.approx(np.ptp(totals) / 4, rel=0.25)


def test_nvt_holds_a_temperature(moving: Atoms) -> None:
    heated(moving, 300.0)
    with Langevin(
        moving,
        2 * units.fs,
        temperature_K=300,
        friction=0.05 / units.fs,
        fixcm=False,
        rng=np.random.default_rng(0),
    ) as dynamics:
        dynamics.run(60)
    assert 50 < moving.get_temperature() < 900
    assert moving.calc.neighbours.rebuilds < 40


@pytest.mark.parametrize("stretch", [0.93, 1.03])
def test_npt_relaxes_the_pressure(moving: Atoms, stretch: float) -> None:
    heated(moving, 100.0)
    moving.set_cell(moving.cell.array * stretch, scale_atoms=True)
    tension, volume = moving.get_stress()[:3].mean(), moving.get_volume()
    with NPTBerendsen(
        moving,
        2 * units.fs,
        temperature_K=100,
        pressure_au=0.0,
        taup=50 * units.fs,
        compressibility_au=1 / (100 * units.GPa),
    ) as dynamics:
        dynamics.run(30)
    assert np.sign(tension) == np.sign(stretch - 1)
    change = moving.get_volume() / volume - 1
    assert -0.1 < change * np.sign(tension) < -0.01  # tension contracts, pressure expands
    assert moving.calc.neighbours.rebuilds < 15


def test_npt_with_a_flexible_cell(moving: Atoms) -> None:
    heated(moving, 200.0)
    start = moving.cell.array.copy()
    with MTKNPT(
        moving,
        2 * units.fs,
        temperature_K=200,
        pressure_au=0.0,
        tdamp=100 * units.fs,
        pdamp=1000 * units.fs,
    ) as dynamics:
        dynamics.run(40)
    assert not np.allclose(moving.cell.array, start)
    assert np.isfinite(moving.get_forces()).all()


def test_files_and_precision(potential: Potential, metal: Atoms, tmp_path: Path) -> None:
    path = tmp_path / "model.bayrace"
    potential.save(path)
    exact = metal.get_forces()
    metal.calc = bayrace.Calculator(str(path), device="cpu", dtype="float32")
    assert metal.calc.potential.dtype == torch.float32
    found = metal.get_forces()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, exact, atol=1e-4)
    metal.positions += 5000.0  # far away, float32 has only 5e-4 Å left
    np.testing.assert_allclose(metal.get_forces(), exact, atol=1e-4)


def test_uncertainty_can_be_switched_off(potential: Potential, metal: Atoms) -> None:
    forces = metal.get_forces()
    metal.calc = Calculator(potential, uncertainty=False)
    np.testing.assert_allclose(metal.get_forces(), forces, atol=1e-12)
    assert set(metal.calc.results) == {"energy", "free_energy", "energies", "forces", "stress"}
    with pytest.raises(PropertyNotImplementedError, match="uncertainty=True"):
        metal.calc.get_property("forces_uncertainty", metal)


def test_stress_needs_three_periodic_directions(make_potential: Make) -> None:
    atoms = molecule("CH4")
    atoms.calc = Calculator(make_potential())
    atoms.get_forces()
    assert "stress" not in atoms.calc.results
    with pytest.raises(PropertyNotImplementedError, match=r"pbc=\[False, False, False\]"):
        atoms.get_stress()
    atoms.get_potential_energy()  # a refused question does not spoil the others


def test_unknown_element(make_potential: Make) -> None:
    atoms = molecule("NH3")
    atoms.calc = Calculator(make_potential())
    with pytest.raises(DataError, match=r"atom 0 is N.*known elements: H, C, O"):
        atoms.get_potential_energy()


def test_atoms_out_of_reach_have_no_forces(make_potential: Make) -> None:
    potential = make_potential(seeds=(0, 1))
    apart = Atoms("CO", positions=[[0, 0, 0], [0, 0, 50.0]])
    apart.calc = Calculator(potential)
    assert not apart.get_forces().any()
    energy = apart.get_potential_energy()
    single = 0.0
    for symbol in "CO":
        alone = Atoms(symbol, calculator=apart.calc)
        single += alone.get_potential_energy()
    assert energy == pytest.approx(single)


def test_every_question_is_answered_once(metal: Atoms) -> None:
    metal.get_forces()
    results = metal.calc.results
    metal.get_stress()
    metal.get_potential_energy()
    metal.calc.get_property("energy_epistemic", metal)
    assert metal.calc.results is results  # nothing was computed again
    metal.positions[0, 0] += 0.01
    metal.get_forces()
    assert metal.calc.results is not results


def test_ase_can_write_and_read_results(metal: Atoms, tmp_path: Path) -> None:
    forces = metal.get_forces()
    ase.io.write(tmp_path / "out.xyz", metal, format="extxyz")
    np.testing.assert_allclose(ase.io.read(tmp_path / "out.xyz").get_forces(), forces, atol=1e-7)
    with Trajectory(tmp_path / "out.traj", "w") as file:
        file.write(metal)
    np.testing.assert_allclose(ase.io.read(tmp_path / "out.traj").get_forces(), forces)
    assert metal.get_properties(["energy", "forces"])["energy"] == metal.get_potential_energy()


def test_primitive_cell_smaller_than_the_cutoff(potential: Potential) -> None:
    atoms = bulk("Al", a=3.9)
    atoms.calc = Calculator(potential)
    cubic = bulk("Al", a=3.9, cubic=True)
    cubic.calc = Calculator(potential)
    assert cubic.get_potential_energy() == pytest.approx(4 * atoms.get_potential_energy())
    np.testing.assert_allclose(atoms.get_stress(), cubic.get_stress(), atol=1e-10)
