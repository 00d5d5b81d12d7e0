"""Surface hopping on Tully's models.

Tully's paper shows curves, not numbers. POPULATIONS are the electronic populations of trajectories
that have not hopped, read from the reference traces of another published code for fewest switches
(mudslide, github.com/smparker/mudslide, test/ref/fssh). EXACT are our own, of wave packets by the
split operator (benchmarks/states/tully.py); fewest switches is known to agree with them where they
are used here.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bayrace.simulate.hopping import models
from bayrace.simulate.hopping.surfaces import Array, Point, Whole
from bayrace.simulate.hopping.swarm import (
    DRIFTED,
    UNTRUSTED,
    HopSettings,
    Swarm,
    begin,
    run,
)


def neighbour(name: str) -> ModuleType:
    """A module beside this one; tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


scattering = neighbour("scattering")
scatter, MASSES = scattering.scatter, scattering.MASSES

POPULATIONS = [  # model, momentum, |c_0|² where a trajectory passes x = 5
    (models.simple_crossing, 8.0, 0.8810),
    (models.dual_crossing, 50.0, 0.9960),
    (models.extended_coupling, 10.0, 0.6970),
    (models.extended_coupling, 20.0, 0.6093),
]
EXACT = [  # model, momentum, transmitted on the lower and upper state
    (models.simple_crossing, 10.0, (0.845, 0.155)),
    (models.simple_crossing, 20.0, (0.508, 0.492)),
    (models.simple_crossing, 30.0, (0.286, 0.714)),
    (models.dual_crossing, 20.0, (0.942, 0.058)),
    (models.dual_crossing, 50.0, (0.985, 0.015)),
    (models.extended_coupling, 10.0, (0.704, 0.0)),
    (models.extended_coupling, 20.0, (0.611, 0.0)),
]


@pytest.mark.parametrize(("diabats", "momentum", "expected"), POPULATIONS)
def test_amplitudes_are_those_of_another_code(
    diabats: models.Diabats, momentum: float, expected: float
) -> None:
    found: list[float] = []
    hopped = np.zeros(20, dtype=bool)

    def watch(swarm: Swarm) -> None:
        hopped[swarm.active != 0] = True
        past = np.flatnonzero(~hopped & (swarm.positions[:, 0] > 5))
        if len(past) and not found:
            found.append(float(swarm.populations[past[0], 0]))

    scatter(diabats, momentum, trajectories=20, watch=watch)
    assert found[0] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("diabats", "momentum", "expected"), EXACT)
def test_transmission(
    diabats: models.Diabats, momentum: float, expected: tuple[float, float]
) -> None:
    extended = diabats is models.extended_coupling
    outcome = scatter(diabats, momentum, trajectories=600, step=0.01 if extended else 0.02)
    # two standard errors of 600 trajectories, and what hopping itself is wrong by
    assert outcome.transmitted == pytest.approx(expected, abs=0.053)
    assert sum(outcome.transmitted) + sum(outcome.reflected) == pytest.approx(1.0)
    assert outcome.drift < 1e-5
    assert outcome.norm < 1e-10


def test_share_of_a_state_is_its_population() -> None:
    """What fewest switches is made for, where no hop is frustrated."""
    outcome = scatter(models.simple_crossing, 20.0, trajectories=1200)
    mean = outcome.last.populations.mean(0)
    assert outcome.transmitted == pytest.approx(tuple(mean), abs=0.04)


def test_decoherence_ends_in_the_active_state() -> None:
    """Of transmitted trajectories: where the packets have parted, the amplitudes have."""
    own = []
    for options in ({}, {"decoherence": "energy"}, {"method": "shxf"}):
        last = scatter(models.extended_coupling, 20.0, trajectories=100, **options).last
        away = last.positions[:, 0] > 0
        own.append(last.populations[np.arange(100), last.active][away].mean())
    assert own[0] < 0.75
    assert min(own[1:]) > 0.98


def test_decoherence_removes_the_interference_of_reflected_packets() -> None:
    """Reflection on the upper state swings with the momentum unless amplitudes lose their phase.

    The exact shares are 0.209, 0.235, 0.237 at momenta 10, 15, 20 (split operator); published
    curves of SHXF (Ha, Lee, Min 2018, and Vindel-Zandbergen et al. 2021 for molecules) follow them.
    """
    plain, better = [], []
    for momentum in (10.0, 15.0, 20.0):
        plain.append(scatter(models.extended_coupling, momentum, trajectories=150).reflected[1])
        outcome = scatter(models.extended_coupling, momentum, trajectories=150, method="shxf")
        better.append(outcome.reflected[1])
    assert np.ptp(plain) > 0.25
    assert np.ptp(better) < np.ptp(plain) / 2
    assert better == pytest.approx([0.209, 0.235, 0.237], abs=0.1)


def test_landau_zener_on_the_simple_crossing() -> None:
    """exp(−2πc²/(ħ v |F₁ − F₂|)) with the velocity at the crossing, which hopping only finds."""
    for momentum in (15.0, 30.0):
        outcome = scatter(
            models.simple_crossing, momentum, trajectories=400, method="landau-zener", step=0.05
        )
        kinetic = momentum**2 / 4000 - 0.01 + 0.005  # at x = 0, on the lower state
        expected = np.exp(-2 * np.pi * 0.005**2 / (np.sqrt(kinetic / 1000) * 2 * 0.016))
        assert outcome.transmitted[1] == pytest.approx(expected, abs=0.06)
        assert outcome.drift < 1e-4


def straight(x: Array) -> tuple[Array, Array]:
    """Diabats ±kx with a constant coupling, of which gaps tell everything."""
    slope, one = 1e-3, np.ones_like(x)
    return np.stack([slope * x, -slope * x, 2e-3 * one]), np.outer([slope, -slope, 0.0], one)


def test_couplings_from_gaps_are_the_couplings_of_straight_diabats() -> None:
    """The same random numbers lead to the same hops, but for those at the edge of their chance."""
    shares, populations = [], []
    for method in ("fssh", "baeck-an"):
        outcome = scatter(straight, 30.0, trajectories=100, method=method, step=0.05)
        shares.append(outcome.transmitted)
        populations.append(outcome.last.populations.mean(0))
        assert 0.2 < outcome.transmitted[1] < 0.8
    assert shares[1] == pytest.approx(shares[0], abs=0.03)
    assert populations[1] == pytest.approx(populations[0], abs=0.03)


def test_surfaces_without_couplings_say_what_will_do() -> None:
    model = models.Model(models.simple_crossing)

    def bare(positions: Array, active: Whole) -> Point:
        point = model(positions, active)
        return Point(point.energies, point.gradient, None)

    at, moving, active = np.array([[-4.0]]), np.array([[0.01]]), np.zeros(1, dtype=int)
    first = begin(bare, at, moving, MASSES, active)
    with pytest.raises(ValueError, match="use landau-zener or baeck-an"):
        next(run(bare, first, MASSES, settings_of(2)))
    *_, last = run(bare, first, MASSES, replace(settings_of(900), method="baeck-an"))
    assert 0.01 < last.populations[0, 1] < 0.99


def test_trajectories_do_not_depend_on_their_company() -> None:
    model, settings = models.Model(models.simple_crossing), settings_of(steps=900)
    at, moving, active = np.full((6, 1), -4.0), np.full((6, 1), 0.01), np.zeros(6, dtype=int)
    *_, together = run(model, begin(model, at, moving, MASSES, active), MASSES, settings)
    one = begin(model, at[4:5], moving[4:5], MASSES, active[4:5], index=np.array([4]))
    *_, alone = run(model, one, MASSES, settings)
    assert alone.positions[0, 0] == pytest.approx(together.positions[4, 0], abs=1e-12)
    assert alone.active[0] == together.active[4]


def test_the_end_of_trust_and_of_conservation_stops_a_trajectory() -> None:
    model = models.Model(models.simple_crossing)

    def careful(positions: Array, active: Whole) -> Point:
        point = model(positions, active)
        return Point(point.energies, point.gradient, point.couplings, trusted=positions[:, 0] < -3)

    at, moving, active = np.array([[-4.0], [-9.0]]), np.full((2, 1), 0.01), np.zeros(2, dtype=int)
    *_, last = run(careful, begin(careful, at, moving, MASSES, active), MASSES, settings_of(200))
    assert last.status.tolist() == [UNTRUSTED, 0]
    assert last.positions[0, 0] == pytest.approx(-3.0, abs=0.03)
    assert last.positions[1, 0] > -7.1
    strict = settings_of(3000, max_drift=1e-9, timestep=5.0)
    *_, last = run(model, begin(model, at, moving, MASSES, active), MASSES, strict)
    assert DRIFTED in last.status


def test_frustrated_hops_can_turn_round() -> None:
    shares = {
        way: scatter(models.simple_crossing, 8.0, trajectories=150, frustrated=way).reflected
        for way in ("keep", "reverse")
    }
    assert sum(shares["reverse"]) >= sum(shares["keep"])


@pytest.mark.parametrize(
    ("change", "said"),
    [({"timestep": 0.0}, "timestep=0.0"), ({"steps": -1}, "steps=-1"), ({"threshold": 0.7}, "0.7")],
)
def test_settings_that_make_no_dynamics(change: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings_of(**{"steps": 10, **change})


def settings_of(steps: int, **changes: object) -> HopSettings:
    given = {"method": "fssh", "timestep": 2.0, "steps": steps, "hbar": 1.0, "substeps": 4}
    return HopSettings(**given | changes)
