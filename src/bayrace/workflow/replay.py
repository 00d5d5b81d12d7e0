"""Replay active learning on labelled pools: select, train, test, for every way to select.

A cell of the table is an acquisition, a budget and a seed. The seed draws the test part of each
pool, which is the same for all acquisitions, and decides random choices and the order of training.
Structures that were chosen, and those the potential has learnt from, leave the test sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bayrace.data.frame import DataError, Frame
from bayrace.data.split import frame_hashes, geometry_fingerprint
from bayrace.evaluate.metrics.accuracy import accuracy
from bayrace.potential.potential import Potential
from bayrace.select.acquire import Acquisition
from bayrace.select.acquire.interface import OverAtoms
from bayrace.select.scan import Scanning
from bayrace.select.select import LEARNT, select
from bayrace.workflow.replay_results import (
    NOTHING,
    QUANTITIES,
    START,
    Cell,
    CellResult,
    find,
    store,
)

Tune = Callable[[Cell, Sequence[Frame]], Potential | None]
"""Trains the potential on its own data and these structures; None if it was interrupted."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What is compared on what."""

    acquisitions: Sequence[str]
    budgets: Sequence[int]  # from each pool
    seeds: Sequence[int]
    pools: Mapping[str, Sequence[Frame]]  # labelled
    train: Sequence[Frame]  # what the potential has learnt from
    tests: Mapping[str, Sequence[Frame]] = field(default_factory=dict)  # never chosen from
    holdout: float = 1 / 3  # of each pool, for its test; 0: what was not chosen
    over_atoms: OverAtoms = "mean"  # see `select`
    min_distance: float | None = None  # see `select`
    ways: Mapping[str, Acquisition] = field(default_factory=dict)  # with options, by their names

    def cells(self) -> list[Cell]:
        """All experiments: whole comparisons of one seed and budget, one after the other."""
        cells = []
        for seed in self.seeds:
            cells.append(Cell(START, 0, seed))
            for budget in self.budgets:
                names = self.acquisitions if budget else (NOTHING,)
                cells += [Cell(name, budget, seed) for name in names]
        return cells


@dataclass(frozen=True, eq=False)
class Divided:
    """A pool of one seed: places of the structures to choose from and to test on."""

    candidates: list[int]
    test: list[int]


def replay(
    potential: Potential,
    plan: Plan,
    *,
    tune: Tune,
    folder: Path,
    identity: str,
    observer: Callable[[Cell, CellResult | None, bool], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[CellResult]:
    """Run the experiments whose files are not in `folder` yet; results in the order of the plan.

    `identity` stands for everything besides the cell that a result depends on; a file with another
    is refused before anything is computed. `observer` hears of each cell before (None) and after,
    and whether it was there already. Once `stop` is true, what is finished is returned.
    """
    _check(plan)
    cells = plan.cells()
    known = {cell: find(folder, cell, identity) for cell in cells}
    results = []
    for cell in cells:
        result = known[cell]
        if result is None:
            if stop():
                break
            observer(cell, None, False)
            result = run_cell(potential, plan, cell, tune=tune)
            if result is None:
                break
            store(folder, result, identity)
        observer(cell, result, known[cell] is not None)
        results.append(result)
    return results


def run_cell(potential: Potential, plan: Plan, cell: Cell, *, tune: Tune) -> CellResult | None:
    """One experiment; None if its training was interrupted."""
    begun = time.monotonic()
    divided = {
        name: divide(len(frames), holdout=plan.holdout, seed=cell.seed, pool=place)
        for place, (name, frames) in enumerate(plan.pools.items())
    }
    chosen = choose(potential, plan, cell, divided)
    picked = [plan.pools[name][place] for name, places in chosen.items() for place in places]
    tuned = potential if cell.acquisition == START else tune(cell, picked)
    if tuned is None:
        return None
    tests = _tests(potential, plan, divided, picked)
    errors = {name: _errors(tuned, frames) for name, frames in tests.items()}
    return CellResult(
        cell=cell,
        chosen=chosen,
        frames={name: len(frames) for name, frames in tests.items()},
        errors=errors,
        members=tuned.posterior.samples,
        seconds=round(time.monotonic() - begun, 1),
    )


def divide(count: int, *, holdout: float, seed: int, pool: int) -> Divided:
    """Draw the test part of a pool; without one, everything may be chosen and is tested."""
    order = np.random.default_rng([seed, pool]).permutation(count).tolist()
    held = round(holdout * count)
    return Divided(sorted(order[held:]), sorted(order[:held] if holdout else order))


def choose(
    potential: Potential, plan: Plan, cell: Cell, divided: Mapping[str, Divided]
) -> dict[str, tuple[int, ...]]:
    """Places of the chosen structures of each pool; a pool knows what the ones before gave."""
    chosen: dict[str, tuple[int, ...]] = {}
    seen = list(plan.train)
    for name, frames in plan.pools.items():
        if not cell.budget:
            chosen[name] = ()
            continue
        places = divided[name].candidates
        selection = select(
            potential,
            [frames[place] for place in places],
            by=plan.ways.get(cell.acquisition, cell.acquisition),
            budget=cell.budget,
            seen=seen,
            seed=cell.seed,
            min_distance=plan.min_distance,
            scanning=Scanning(over_atoms=plan.over_atoms),
        )
        if len(selection.indices) < cell.budget:
            raise DataError(
                f"{name}: only {len(selection.indices)} of {len(places)} structures can be chosen "
                f"(left out: {dict(selection.skipped)}); lower the budget of {cell.budget}"
            )
        chosen[name] = tuple(places[index] for index in selection.indices)
        seen += [frames[place] for place in chosen[name]]
    return chosen


def _tests(
    potential: Potential, plan: Plan, divided: Mapping[str, Divided], picked: Sequence[Frame]
) -> dict[str, list[Frame]]:
    """Test sets without structures that were learnt from."""
    parts = [potential.frames[part] for part in LEARNT if part in potential.frames]
    learnt = set(np.concatenate(parts).tolist()) if parts else set()
    geometries = {geometry_fingerprint(frame) for frame in picked}
    sets = {name: [plan.pools[name][place] for place in divided[name].test] for name in plan.pools}
    sets |= {name: list(frames) for name, frames in plan.tests.items()}
    return {
        name: [
            frame
            for frame, known in zip(frames, frame_hashes(frames).tolist(), strict=True)
            if known not in learnt and geometry_fingerprint(frame) not in geometries
        ]
        for name, frames in sets.items()
    }


def _errors(potential: Potential, frames: Sequence[Frame]) -> dict[str, dict[str, float]]:
    if not frames:
        return {}
    total = accuracy(potential.predict_frames(frames, uncertainty="none")).total
    found = {name: getattr(total, name) for name in QUANTITIES}
    return {
        name: {"rmse": errors.rmse, "mae": errors.mae}
        for name, errors in found.items()
        if errors is not None
    }


def _check(plan: Plan) -> None:
    """Refuse pools that cannot be replayed."""
    for name, frames in plan.pools.items():
        bare = [frame for frame in frames if not frame.labelled]
        if bare:
            raise DataError(f"{name}: {bare[0].origin} has no labels; a replay needs them")
        most, count = max(plan.budgets), len(frames) - round(plan.holdout * len(frames))
        if most > count:
            raise DataError(
                f"{name}: a budget of {most} from {count} structures (of {len(frames)}, the rest "
                "is the test set); lower budgets or holdout"
            )
