"""Electronic states composed of potentials: exact formulas, members, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

from bayrace.data.frame import Frame, LabelKeys, bare_frame, frame_from_atoms
from bayrace.data.gaps import MEAN, SOFT_GAP
from bayrace.potential.potential import Potential, PotentialError
from bayrace.potential.states import CLOSEST, FLOOR, States, compose, compose_gap
from bayrace.simulate.hopping.learnt import HBAR, LearntSurfaces
from bayrace.simulate.hopping.swarm import UNTRUSTED, HopSettings, begin, run
from bayrace.simulate.stop import StopRule

WATER = np.array([[0.0, 0.0, 0.0], [0.0, 0.8, 0.55], [0.0, -0.75, 0.6]])


def frames(count: int) -> list[Frame]:
    random = np.random.default_rng(0)
    return [
        bare_frame(
            np.array([8, 1, 1]),
            WATER + random.normal(scale=0.05, size=(3, 3)),
            np.zeros((3, 3)),
            np.zeros(3, dtype=bool),
            source="test",
            index=i,
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def diabats(make_potential: Callable[..., Potential]) -> States:
    """Three with two members each; the third is far above zero."""
    shift = {1: 0.0, 6: 0.0, 8: 0.0}
    parts = [
        replace(make_potential(seeds=(2 * k, 2 * k + 1)), references=shift | {8: float(k)})
        for k in range(2)
    ]
    square = replace(make_potential(seeds=(7, 8)), references=shift | {8: 3.0})
    return States((*parts, square), "diabatic")


def test_gradients_and_coupling_of_composed_potentials(diabats: States) -> None:
    """One member each, so that the mean over members is a plain function of the positions."""
    single = States(tuple(_first(p) for p in diabats.potentials), "diabatic")
    (frame,) = frames(1)
    found = single.predict([frame], uncertainty=False)
    assert found.coupling is not None
    step = 1e-4
    for atom, axis in ((0, 2), (1, 1), (2, 0)):
        ends, turns = [], []
        for sign in (1, -1):
            moved = frame.positions.copy()
            moved[atom, axis] += sign * step
            at = replace(frame, positions=moved)
            ends.append(single.predict([at], uncertainty=False).energies[0])
            turns.append(_angle(single, at))
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found.gradients[0, :, atom, axis], slope, atol=1e-6)
        turn = (turns[0] - turns[1]) / (2 * step)
        assert found.coupling[0, atom, axis] == pytest.approx(turn, abs=1e-6)


def _first(potential: Potential) -> Potential:
    from bayrace.posterior.point import Point

    return replace(potential, posterior=Point({k: v[0] for k, v in potential.members.items()}))


def _angle(states: States, frame: Frame) -> float:
    """Half of atan(2Δ/δ), whose slope is the coupling."""
    pps, oss, square = (float(p.predict(frame).energy.mean[0]) for p in states.potentials)
    return float(np.arctan2(2 * np.sqrt(square), pps - oss) / 2)


def test_an_analytic_molecule_is_reproduced_exactly() -> None:
    """Crossing parabolas in six structures of two atoms: adiabats of H by its eigenvalues."""
    random = np.random.default_rng(1)
    values = [random.normal(size=6), random.normal(size=6), random.uniform(0.1, 1.0, 6)]
    slopes = [random.normal(size=(6, 2, 3)) for _ in range(3)]
    energies, gradients, _ = compose(values, slopes)
    for row in range(6):
        coupling = np.sqrt(values[2][row])
        matrix = np.array([[values[0][row], coupling], [coupling, values[1][row]]])
        low, vectors = np.linalg.eigh(matrix)
        np.testing.assert_allclose(energies[row], low, atol=1e-13)
        slope = slopes[2][row] / (2 * coupling)
        hellmann = np.einsum(
            "is,js,ijna->sna",
            vectors,
            vectors,
            np.array([[slopes[0][row], slope], [slope, slopes[1][row]]]),
        )
        np.testing.assert_allclose(gradients[row], hellmann, atol=1e-12)


def test_no_coupling_leaves_the_diabats() -> None:
    values = [np.array([1.0]), np.array([3.0]), np.array([-0.2])]
    slopes = [np.ones((1, 1, 3)), np.zeros((1, 1, 3)), np.zeros((1, 1, 3))]
    energies, gradients, coupling = compose(values, slopes)
    np.testing.assert_allclose(energies[0], [1.0, 3.0])
    np.testing.assert_allclose(gradients[0, 0], 1.0)
    assert np.abs(coupling).max() <= FLOOR


def test_variances_are_those_of_the_members(diabats: States) -> None:
    chosen = frames(2)
    found = diabats.predict(chosen)
    each = []
    for member in (0, 1):
        single = States(
            tuple(replace(p, posterior=_one(p, member)) for p in diabats.potentials),
            "diabatic",
        )
        each.append(single.predict(chosen, uncertainty=False))
    energies = np.stack([e.energies for e in each])
    told = [p.predict(chosen).energy.mean.numpy() for p in diabats.potentials]
    none = [np.zeros((2, 3, 3))] * 3
    np.testing.assert_allclose(found.energies, compose(told, none)[0], atol=1e-10)
    unaware = diabats.predict(chosen, uncertainty=False)
    np.testing.assert_allclose(found.gradients, unaware.gradients, atol=1e-10)
    assert (found.energies_variance >= energies.var(0) - 1e-12).all()  # noise comes on top
    couplings = np.stack([e.coupling for e in each])
    np.testing.assert_allclose(found.coupling_variance, couplings.var(0), atol=1e-12)


def _one(potential: Potential, member: int):
    from bayrace.posterior.point import Point

    return Point({k: v[member] for k, v in potential.members.items()})


def test_states_learnt_directly_are_in_order(make_potential: Callable[..., Potential]) -> None:
    low = make_potential(seeds=(0,))
    high = replace(make_potential(seeds=(1,)), references={1: 0.0, 6: 0.0, 8: 0.0})
    told = States((high, low), "adiabatic").predict(frames(3))
    assert (np.diff(told.energies, axis=1) > 0).all()
    assert told.coupling is None
    expected = low.predict(frames(3)).forces.mean.numpy().reshape(3, 3, 3)
    np.testing.assert_allclose(-told.gradients[:, 0], expected, atol=1e-12)


@pytest.mark.parametrize("gap", [4.0, 0.5, 0.02])
def test_the_gap_form_gives_the_adiabats_back(gap: float) -> None:
    """From the labels of a frame, as a trained potential would tell them."""
    atoms = Atoms("OH2", WATER)
    random = np.random.default_rng(3)
    atoms.info |= {"energy_0": -3.0, "energy_1": -3.0 + gap}
    for state in (0, 1):
        atoms.arrays[f"forces_{state}"] = random.normal(size=(3, 3))
    read = [
        frame_from_atoms(atoms, keys=LabelKeys(energy, forces, None, None, None))
        for energy, forces in (MEAN, SOFT_GAP)
    ]
    values = [np.array([frame.energy]) for frame in read]
    energies, gradients, coupling = compose_gap(values, [-frame.forces[None] for frame in read])
    assert coupling is None
    exact = gap > 10 * CLOSEST
    np.testing.assert_allclose(energies[0], [-3.0, -3.0 + gap], atol=1e-5 if exact else CLOSEST)
    if exact:
        slopes = -np.stack([atoms.arrays["forces_0"], atoms.arrays["forces_1"]])
        np.testing.assert_allclose(gradients[0], slopes, atol=1e-5)


@pytest.mark.parametrize("soft", [0.9, 0.3003, 0.3, 0.29, 0.1])
def test_slopes_of_the_gap_form_are_those_of_its_energies(soft: float) -> None:
    """Also where a prediction has no exact counterpart, a softened gap below the softening."""
    slopes = [np.array([[[0.2, 0.0, 0.0]]]), np.array([[[0.7, 0.0, 0.0]]])]
    step = 1e-7
    ends = [
        compose_gap([np.array([1.0 + s * 0.2]), np.array([soft + s * 0.7])], slopes)[0]
        for s in (step, -step)
    ]
    _, gradients, _ = compose_gap([np.array([1.0]), np.array([soft])], slopes)
    slope = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(gradients[0, :, 0, 0], slope[0], atol=1e-5)


def test_gap_potentials_are_known_by_their_labels(
    make_potential: Callable[..., Potential], tmp_path: Path
) -> None:
    for name, key, shift in (("mean", MEAN[0], 0.0), ("gap", SOFT_GAP[0], 4.0)):
        references = {1: 0.0, 6: 0.0, 8: shift}
        trained = replace(make_potential(seeds=(0, 1)), references=references)
        replace(trained, config={"data": {"energy_key": key}}).save(tmp_path / f"{name}.bayrace")
    files = [tmp_path / "gap.bayrace", tmp_path / "mean.bayrace"]
    states = States.load(files, diabatic=False)
    assert (states.form, states.count) == ("gap", 2)
    told, mean = states.predict(frames(2)), Potential.load(files[1]).predict(frames(2))
    np.testing.assert_allclose(told.energies.mean(1), mean.energy.mean.numpy(), atol=1e-9)
    assert (np.diff(told.energies, axis=1) > 1.0).all()
    assert (told.energies_variance >= mean.energy.aleatoric.numpy()[:, None]).all()
    parts = [Potential.load(file).predict(frames(2)).forces.total.numpy() for file in files]
    both = sum(parts).reshape(2, 1, 3, 3, 3)
    np.testing.assert_allclose(told.trust, np.broadcast_to(both, (2, 2, 3, 3, 3)), atol=1e-9)
    with pytest.raises(PotentialError, match="belongs with one potential"):
        States.load([files[0], files[0]], diabatic=False)


def test_hopping_on_learnt_states_conserves_energy_and_stops(diabats: States) -> None:
    (frame,) = frames(1)
    surfaces = LearntSurfaces(diabats, frame)
    settings = HopSettings(method="shxf", timestep=0.1, steps=20, hbar=HBAR)
    start = np.tile(frame.positions.ravel(), (3, 1))
    speed = np.random.default_rng(2).normal(scale=0.01, size=start.shape)
    first = begin(surfaces, start, speed, surfaces.masses, np.array([1, 1, 0]))
    *_, last = run(surfaces, first, surfaces.masses, settings)
    drift = np.abs(last.total_energy(surfaces.masses) - last.start_energy)
    assert drift.max() < 1e-3
    np.testing.assert_allclose(last.populations.sum(1), 1.0, atol=1e-10)
    careful = replace(surfaces, rule=StopRule(max_force_error=1e-6, probability=0.5))
    stopped = begin(careful, start, speed, surfaces.masses, np.array([1, 1, 0]))
    assert (stopped.status == UNTRUSTED).all()


def test_a_rule_that_could_not_see_is_refused(make_potential: Callable[..., Potential]) -> None:
    from bayrace.models.noise import NO_NOISE

    blind = States(tuple(make_potential(seeds=(k,), noise=NO_NOISE) for k in (0, 1)), "adiabatic")
    (frame,) = frames(1)
    surfaces = LearntSurfaces(blind, frame, StopRule(max_force_error=0.5, probability=0.5))
    with pytest.raises(ValueError, match="no uncertainty of forces"):
        surfaces(frame.positions.reshape(1, -1), np.zeros(1, dtype=int))


def test_what_does_not_belong_together(make_potential: Callable[..., Potential]) -> None:
    one = make_potential(seeds=(0,))
    with pytest.raises(PotentialError, match="needs three"):
        States((one, one), "diabatic")
    with pytest.raises(PotentialError, match="different elements"):
        States((one, make_potential(seeds=(0,), elements=(1, 8))), "adiabatic")
