"""Dynamics: conserved energies, repeatable runs, exact biases, and rules that act when due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.build import bulk
from ase.calculators.fd import calculate_numerical_forces

from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.core.prediction import ErrorDistribution
from bayrace.data.dataset import Dataset
from bayrace.data.distances import Distances
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import DataError, Frame, frame_from_atoms, frame_to_atoms
from bayrace.data.neighbours import neighbour_list
from bayrace.deploy.ase import Calculator
from bayrace.models.noise import NO_NOISE
from bayrace.posterior.gaussian.last_layer import LastLayer, last_layer_places
from bayrace.posterior.llpr import Llpr
from bayrace.potential.potential import Potential
from bayrace.simulate.bias import BiasedCalculator
from bayrace.simulate.dynamics import DynamicsSettings, ExplodedError, Look, simulate
from bayrace.simulate.explore import describe
from bayrace.simulate.explosion import has_company, in_pieces, remedy
from bayrace.simulate.stop import StopRule
from bayrace.simulate.trajectory import open_trajectory

Make = Callable[..., Potential]
SHAPE = ErrorDistribution((-3.0, -1.0, 0.0, 1.0, 3.0), (0.0, 0.2, 0.5, 0.8, 1.0))


@pytest.fixture(scope="module")
def ethanol() -> Frame:
    return embedded_frames("ethanol-test")[0]


@pytest.fixture(scope="module")
def members(make_potential: Make) -> Potential:
    return make_potential(seeds=(0, 1))


@pytest.fixture(scope="module")
def closed(members: Potential) -> Potential:
    """The same network with a last-layer posterior."""
    mean = {name: value[0] for name, value in members.members.items()}
    places = last_layer_places(members.model, mean)
    factor = torch.randn(
        len(places), 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return replace(
        members, posterior=Llpr(LastLayer(mean, places, 0.01 * factor), 1.0, 1.0, 1.0, 1.0)
    )


def settings(**changes: object) -> DynamicsSettings:
    values = {"ensemble": "nvt", "temperature": 300.0, "steps": 10, "seed": 1}
    return DynamicsSettings(**{**values, **changes})


def looks(*arguments: object, **options: object) -> list[Look]:
    return list(simulate(*arguments, **options))


def positions(potential: Potential, start: Frame, **changes: object) -> np.ndarray:
    return looks(potential, start, settings(**changes))[-1].atoms.positions


def test_energy_is_conserved(members: Potential, ethanol: Frame) -> None:
    run = simulate(members, ethanol, settings(ensemble="nve", steps=40, timestep=0.25))
    total = [look.energy + look.atoms.get_kinetic_energy() for look in run]
    assert np.ptp(total) < 0.02 * 0.5 * 3 * 9 * 300 * 8.617e-5
    assert np.ptp(total) > 0


@pytest.mark.parametrize("thermostat", ["langevin", "bussi"])
def test_runs_repeat_by_their_seed(thermostat: str, members: Potential, ethanol: Frame) -> None:
    first, again, other = (
        positions(members, ethanol, thermostat=thermostat, seed=seed) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4


def test_looks_come_as_often_as_asked(members: Potential, ethanol: Frame) -> None:
    found = looks(members, ethanol, settings(steps=10, uncertainty_every=4))
    assert [look.step for look in found] == [0, 4, 8, 10]
    assert [look.time for look in found] == [0.0, 2.0, 4.0, 5.0]
    assert found[0].risk is None
    assert found[0].forces_std == found[0].results["forces_uncertainty"].max()


def test_rare_looks_do_not_change_the_motion(closed: Potential, ethanol: Frame) -> None:
    """Closed forms move without uncertainties between looks."""
    often, rarely = (positions(closed, ethanol, steps=6, uncertainty_every=n) for n in (1, 3))
    np.testing.assert_allclose(often, rarely, atol=1e-12)


@pytest.mark.parametrize("barostat", ["mtk", "berendsen"])
def test_cells_change_under_pressure(barostat: str, make_potential: Make) -> None:
    potential = make_potential(elements=(13, 29))
    metal = frame_from_atoms(bulk("Al", cubic=True), keys=None)
    under = settings(
        ensemble="npt", barostat=barostat, pressure=5.0, steps=5, pressure_relaxation=50.0
    )
    *_, last = simulate(potential, metal, under)
    assert last.atoms.get_volume() != pytest.approx(bulk("Al", cubic=True).get_volume(), rel=1e-6)


def test_molecules_have_no_pressure(members: Potential, ethanol: Frame) -> None:
    with pytest.raises(ValueError, match=r"npt needs a cell .*use nvt"):
        looks(members, ethanol, settings(ensemble="npt"))


@pytest.mark.parametrize("kind", ["members", "closed"])
def test_biased_forces_are_the_slope_of_the_biased_energy(
    kind: str, ethanol: Frame, request: pytest.FixtureRequest
) -> None:
    potential: Potential = request.getfixturevalue(kind)
    fitted = Recalibration(2.0, 10)
    potential = replace(potential, calibration=Calibration("scale", fitted, None, None, 1, ""))
    atoms = frame_to_atoms(ethanol)
    inner = Calculator(potential)
    atoms.calc = BiasedCalculator(inner, strength=3.0)
    forces = atoms.get_forces()
    spread = inner.results["energy_epistemic"]  # calibrated
    assert atoms.get_potential_energy() == pytest.approx(
        inner.results["energy"] - 3.0 * spread, abs=1e-9
    )
    np.testing.assert_allclose(forces, calculate_numerical_forces(atoms, eps=1e-4), atol=1e-6)
    assert np.abs(forces - inner.results["forces"]).max() > 1e-3
    np.testing.assert_allclose(forces.sum(0), 0.0, atol=1e-9)


def test_a_bias_raises_the_uncertainty(members: Potential, ethanol: Frame) -> None:
    plain, biased = (
        looks(members, ethanol, settings(ensemble="nve", bias=bias))[-1].results["energy_epistemic"]
        for bias in (0, 2)
    )
    assert biased > 1.02 * plain


def test_certain_potentials_have_no_bias(make_potential: Make, ethanol: Frame) -> None:
    with pytest.raises(ValueError, match="point does not know what it does not know"):
        looks(make_potential(), ethanol, settings(bias=1.0))


def test_a_rule_stops_at_the_first_broken_look(members: Potential, ethanol: Frame) -> None:
    """Between the least and the largest risk of a run, the rule acts on the way."""
    bound = 3 * looks(members, ethanol, settings(steps=0))[0].forces_std
    recorded = looks(members, ethanol, settings(), rule=StopRule(bound, 0.5, action="record"))
    risks = [look.risk.probability for look in recorded]
    limit = float(np.median(risks))
    first = next(step for step, risk in enumerate(risks) if risk > limit)
    stopped = looks(members, ethanol, settings(), rule=StopRule(bound, limit))
    assert [look.broken for look in stopped] == [False] * first + [True]
    assert stopped[-1].step == first
    warned = looks(members, ethanol, settings(), rule=StopRule(bound, limit, action="warn"))
    assert len(warned) == len(recorded) == 11


def test_rules_use_the_calibrated_distribution(members: Potential, ethanol: Frame) -> None:
    calibration = Calibration("isotonic", None, Recalibration(1.5, 99, SHAPE), None, 3, "")
    rule = StopRule(2.0, 0.5, action="record")
    raw, heavy = (
        looks(potential, ethanol, settings(steps=0), rule=rule)[0]
        for potential in (members, replace(members, calibration=calibration))
    )
    covariance = 2.25 * raw.results["forces_covariance"]
    np.testing.assert_allclose(heavy.results["forces_covariance"], covariance)
    assert heavy.risk.probability == pytest.approx(rule.risk(covariance, SHAPE).probability)
    assert heavy.risk.probability != pytest.approx(rule.risk(covariance).probability)


def test_rules_need_an_uncertainty(make_potential: Make, ethanol: Frame) -> None:
    potential = make_potential(noise=NO_NOISE)
    with pytest.raises(ValueError, match="a stop rule would never act"):
        looks(potential, ethanol, settings(), rule=StopRule(0.5, 0.05))


def test_explosions_are_told_from_mistakes(members: Potential, ethanol: Frame) -> None:
    with pytest.raises(
        ExplodedError, match=r"step \d+ at 300 K: .*; the time step of 20 fs is long"
    ):
        looks(members, ethanol, settings(ensemble="nve", steps=200, timestep=20.0))
    overlapping = replace(ethanol, positions=0.01 * ethanol.positions)
    with pytest.raises(DataError, match="apart"):
        looks(members, overlapping, settings())


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0},
        {"timestep": -1.0},
        {"steps": -1},
        {"bias": -1.0},
        {"uncertainty_every": 0},
    ],
)
def test_useless_settings_are_refused(change: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(change))}="):
        settings(**change)


@pytest.mark.parametrize("name", ["run.traj", "run.xyz"])
def test_trajectories_keep_everything(
    name: str, members: Potential, ethanol: Frame, tmp_path: Path
) -> None:
    rule = StopRule(0.5, 0.5, action="record")
    found = []
    with open_trajectory(tmp_path / name) as append:
        for look in simulate(members, ethanol, settings(steps=2), rule=rule):
            found.append(look.snapshot())
            append(look.snapshot())
    images = ase.io.read(tmp_path / name, index=":")
    assert len(images) == 3
    for image, expected in zip(images, found, strict=True):
        where = image.info if name.endswith("traj") else image.arrays
        np.testing.assert_allclose(
            where["forces_covariance"], expected.arrays["forces_covariance"], rtol=1e-8
        )
        np.testing.assert_allclose(image.get_forces(), expected.get_forces(), atol=1e-7)
        np.testing.assert_allclose(image.get_momenta(), expected.get_momenta(), atol=1e-7)
        for key in ("energy_uncertainty", "risk", "time_fs", "step"):
            assert image.info[key] == pytest.approx(expected.info[key], rel=1e-7)
    with pytest.raises(DataError, match=r"is a \.traj or an \.xyz file"), open_trajectory("a.dcd"):
        pass


@pytest.fixture(scope="module")
def learnt(members: Potential) -> Potential:
    """With the distances of ethanol at 300 K."""
    frames = embedded_frames("ethanol-train")[:100]
    references = dict.fromkeys(members.elements, 0.0)
    data = Dataset(
        frames, elements=members.elements, cutoff=members.model.cutoff, references=references
    )
    return replace(members, distances=Distances.of(data))


def test_distances_that_nothing_was_learnt_of_stop_it(learnt: Potential, ethanol: Frame) -> None:
    """A hydrogen is set down where none was; no probability is as large as 0.999."""
    rule = StopRule(100.0, 0.999, gap=0.3)
    calm = looks(learnt, ethanol, settings(steps=3), rule=rule)
    assert len(calm) == 4
    assert all(look.gap is not None and look.gap.size < 0.3 for look in calm)
    assert calm[0].snapshot().info["distance_gap"] == calm[0].gap.size
    positions = ethanol.positions.copy()
    hydrogen = int(np.flatnonzero(ethanol.numbers == 1)[0])
    carbon = int(np.flatnonzero(ethanol.numbers == 6)[0])
    bond = positions[hydrogen] - positions[carbon]
    positions[hydrogen] = positions[carbon] + 1.5 * bond / np.linalg.norm(bond)
    stretched = replace(ethanol, positions=positions)
    (look,) = looks(learnt, stretched, settings(steps=3), rule=rule)
    assert look.broken
    assert look.gap is not None
    assert look.gap.size > 0.3
    assert hydrogen in look.gap.atoms
    assert "such distance of the training data makes a gap of" in describe(look, rule)
    both = StopRule(1e-6, 0.05, gap=0.3)
    (look,) = looks(learnt, stretched, settings(steps=3), rule=both)
    assert "the force on some atom" in describe(look, both)
    without = looks(learnt, stretched, settings(steps=3), rule=replace(rule, gap=None))
    assert not any(look.broken for look in without)


def test_distances_need_no_uncertainty(learnt: Potential, make_potential: Make) -> None:
    silent = replace(make_potential(noise=NO_NOISE), distances=learnt.distances)
    start = embedded_frames("ethanol-hot")[0]
    (look,) = looks(silent, start, settings(), rule=StopRule(0.5, 0.05, gap=1e-3))
    assert look.broken
    assert look.risk is not None
    assert look.risk.probability == 0


def test_old_files_know_no_distances(members: Potential, ethanol: Frame) -> None:
    assert looks(members, ethanol, settings(steps=1))[0].gap is None
    with pytest.raises(ValueError, match=r"gap=0\.1 Å: .* train anew, or leave gap out"):
        looks(members, ethanol, settings(), rule=StopRule(0.5, 0.05, gap=0.1))


def test_atoms_that_lose_each_other_have_exploded():
    start = embedded_frames("ethanol-train")[0]

    def company(positions: np.ndarray) -> np.ndarray:
        edges, _ = neighbour_list(positions, start.cell, start.pbc, 5.0)
        return has_company(len(positions), edges)

    before = company(start.positions)
    assert before.all()
    assert in_pieces(before, before, 5.0) is None
    one_gone = start.positions.copy()
    one_gone[8] += 100.0
    assert not company(one_gone)[8]
    assert in_pieces(company(one_gone), before, 5.0) is None
    gas = company(20.0 * start.positions)
    assert "9 of 9 atoms have no other within 5 Å any more" in str(in_pieces(gas, before, 5.0))
    assert in_pieces(gas, gas, 5.0) is None  # it was so from the beginning


def test_absurd_temperatures_are_refused():
    with pytest.raises(ValueError, match=r"temperature=1e\+07: above 100000 K no bonds are left"):
        DynamicsSettings("nvt", 1e7, 10)


def test_long_steps_are_blamed_on_themselves():
    assert "the time step of 50 fs is long" in remedy(50.0)
    assert "smaller time step or a lower temperature" in remedy(0.5)
