"""Exploration from several starts and temperatures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bayrace.data.embedded import embedded_frames
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings
from bayrace.simulate.explore import Excursion, explore
from bayrace.simulate.stop import StopRule

Make = Callable[..., Potential]
SETTINGS = DynamicsSettings("nvt", temperature=1.0, steps=6, seed=5)


@pytest.fixture(scope="module")
def potential(make_potential: Make) -> Potential:
    return make_potential(seeds=(0, 1))


def test_every_start_at_every_temperature(potential: Potential) -> None:
    starts = embedded_frames("ethanol-test")[:2]
    told: list[Excursion] = []
    found = explore(
        potential, starts, [300.0, 600.0], SETTINGS, rule=None, every=4, progress=told.append
    )
    assert told == found
    assert [(run.start, run.temperature) for run in found] == [
        (start.origin, temperature) for start in starts for temperature in (300.0, 600.0)
    ]
    assert len({run.seed for run in found}) == 4
    for run in found:
        assert (run.reason, run.steps) == ("finished", 6)
        assert [visit.frame.index for visit in run.visits] == [0, 4, 6]
        assert np.isnan(run.visits[0].risk)
        assert run.visits[0].forces_std > 0
        assert run.visits[0].frame.energy is None
    hot, cold = (np.mean([v.temperature for v in found[i].visits]) for i in (1, 0))
    assert hot > cold


def test_runs_do_not_depend_on_their_company(potential: Potential) -> None:
    starts = embedded_frames("ethanol-test")[:2]
    both = explore(potential, starts, [300.0], SETTINGS, rule=None, every=6, repeats=2)
    alone = explore(potential, starts[:1], [300.0], SETTINGS, rule=None, every=6)
    last = [run.visits[-1].frame.positions for run in (both[0], alone[0], both[2])]
    np.testing.assert_array_equal(last[0], last[1])
    assert np.abs(last[0] - last[2]).max() > 1e-4


def test_uncertain_runs_end_with_the_frame_that_broke_the_rule(potential: Potential) -> None:
    starts = embedded_frames("ethanol-test")[:1]
    (run,) = explore(potential, starts, [300.0], SETTINGS, rule=StopRule(1e-3, 0.5), every=4)
    assert (run.reason, run.steps) == ("uncertain", 0)
    assert run.visits[-1].broken
    assert run.visits[-1].risk > 0.5
    assert "wrong by more than 0.001 eV/Å with probability 1, above 0.5" in run.message
    calm = StopRule(1e3, 0.5)
    (run,) = explore(potential, starts, [300.0], SETTINGS, rule=calm, every=4)
    assert run.reason == "finished"
    assert run.visits[-1].risk == pytest.approx(0.0, abs=1e-6)


def test_explosions_leave_what_was_visited(potential: Potential) -> None:
    wild = DynamicsSettings("nve", temperature=1.0, steps=200, timestep=5.0)
    starts = embedded_frames("ethanol-test")[:1]
    (run,) = explore(potential, starts, [300.0], wild, rule=None, every=1)
    assert run.reason == "exploded"
    assert 0 < run.steps < 200
    assert len(run.visits) == run.steps + 1
    assert run.message.startswith("step ")


def test_nothing_to_explore(potential: Potential) -> None:
    with pytest.raises(ValueError, match="0 starts and 1 temperatures"):
        explore(potential, [], [300.0], SETTINGS, rule=None, every=1)
