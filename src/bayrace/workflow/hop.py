"""A swarm of hopping trajectories on learnt states: in processes, resumable, with populations.

Trajectories are divided into groups. A group moves as one batch in a process of its own and writes
one file when it is done, so that whatever interrupts a swarm costs at most the groups under way.
Results do not depend on the number of processes or on the size of groups.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayrace.data.frame import Frame
from bayrace.potential.states import States
from bayrace.simulate.hopping.learnt import LearntSurfaces
from bayrace.simulate.hopping.surfaces import Array, Whole
from bayrace.simulate.hopping.swarm import DRIFTED, UNTRUSTED, HopSettings, begin, run
from bayrace.simulate.stop import StopRule
from bayrace.system.child import do_task
from bayrace.system.jobs import Job, Placement, Standing, run_jobs
from bayrace.system.process import tune_process
from bayrace.train.checkpoint import write_atomically

_MODULE = "bayrace.workflow.hop"
_GEOMETRY, _STARTS = ("numbers", "positions", "cell", "pbc"), ("positions", "velocities")


@dataclass(frozen=True, eq=False)
class SwarmPlan:
    """What is to run; all of it decides the results."""

    models: tuple[str, ...]  # files of potentials
    diabatic: bool
    frame: Frame  # whose atoms move
    positions: Array  # (T, 3n) Å
    velocities: Array  # (T, 3n) Å/fs
    state: int  # that all trajectories begin in
    settings: HopSettings
    rule: StopRule | None
    record_every: int  # steps


@dataclass(frozen=True, eq=False)
class SwarmResult:
    """What a swarm did; K records of T trajectories."""

    times: Array  # (K,) fs
    active: Whole  # (K, T); −1 after a trajectory has stopped
    populations: Array  # (K, T, S), |c|²; nan after a trajectory has stopped
    positions: Array  # (K, T, n, 3) Å
    status: Whole  # (T,), why it stopped; 0 where it did not
    drift: Array  # (T,) eV, largest of the total energy
    hops: Whole  # (T,), how many

    def shares(self) -> tuple[Array, Array, Array]:
        """Share of running trajectories in each state, its standard error and mean |c|², (K, S)."""
        states = self.populations.shape[2]
        running = (self.active >= 0).sum(1)
        counts = np.maximum(running, 1)[:, None]
        inside = (self.active[:, :, None] == np.arange(states)).sum(1) / counts
        error = np.sqrt(inside * (1 - inside) / counts)
        weights = np.where(self.active[:, :, None] >= 0, self.populations, 0.0)
        return inside, error, weights.sum(1) / counts

    def dihedral(self, atoms: tuple[int, int, int, int]) -> Array:
        """Angle in degrees, (K, T), from −180 to 180; nan after a trajectory has stopped."""
        first, second, third, fourth = (self.positions[:, :, atom] for atom in atoms)
        axis = third - second
        left, right = np.cross(second - first, axis), np.cross(axis, fourth - third)
        length = np.linalg.norm(axis, axis=-1)
        sine = length * np.einsum("...i,...i->...", second - first, right)
        cosine = np.einsum("...i,...i->...", left, right)
        angle = np.degrees(np.arctan2(sine, cosine))
        return np.where(self.active >= 0, angle, np.nan)

    def summary(self) -> dict[str, float | int]:
        """In numbers."""
        count = len(self.status)
        return {
            "trajectories": count,
            "stopped_by_uncertainty": int((self.status == UNTRUSTED).sum()),
            "stopped_by_drift": int((self.status == DRIFTED).sum()),
            "share_stopped_by_uncertainty": float((self.status == UNTRUSTED).mean()),
            "hops": int(self.hops.sum()),
            "largest_drift_eV": float(np.nanmax(self.drift, initial=0.0)),
        }


def run_swarm(
    plan: SwarmPlan,
    folder: Path,
    *,
    workers: int = 1,
    group: int = 25,
    done: Callable[[int, int], None] | None = None,
) -> SwarmResult:
    """Run what is missing in `folder`, and gather all of it; `done` hears of finished groups."""
    folder.mkdir(parents=True, exist_ok=True)
    _same_plan(plan, folder / "plan.json")
    total = len(plan.positions)
    groups = [range(a, min(a + group, total)) for a in range(0, total, group)]
    files = [folder / f"trajectories-{g.start:05d}-{g.stop:05d}.npz" for g in groups]
    missing = [(g, f) for g, f in zip(groups, files, strict=True) if not f.exists()]
    finished = len(groups) - len(missing)
    tell = done or (lambda *_: None)
    tell(finished, len(groups))
    if workers == 1:
        for members, path in missing:
            _run_group(plan, members, path)
            finished += 1
            tell(finished, len(groups))
    elif missing:
        _run_in_processes(plan, missing, workers, lambda ended: tell(finished + ended, len(groups)))
    return gather(files)


def gather(files: Sequence[Path]) -> SwarmResult:
    """The trajectories of several files as one result, which is as long as the longest."""
    parts = []
    for path in files:
        with np.load(path) as kept:
            parts.append({name: kept[name] for name in kept.files})
    longest = max(parts, key=lambda part: len(part["times"]))["times"]

    def joined(name: str, empty: float) -> Array:
        padded = []
        for part in parts:
            value = part[name]
            shape = (len(longest) - len(value), *value.shape[1:])
            padded.append(np.concatenate([value, np.full(shape, empty, dtype=value.dtype)]))
        result: Array = np.concatenate(padded, axis=1)
        return result

    flat = {k: np.concatenate([part[k] for part in parts]) for k in ("status", "drift", "hops")}
    return SwarmResult(
        times=longest,
        active=joined("active", -1).astype(np.int64),
        populations=joined("populations", np.nan),
        positions=joined("positions", np.nan),
        status=flat["status"],
        drift=flat["drift"],
        hops=flat["hops"],
    )


def _run_in_processes(
    plan: SwarmPlan,
    missing: Sequence[tuple[range, Path]],
    workers: int,
    ended: Callable[[int], None],
) -> None:
    """Groups in processes side by side; `ended` hears how many there have been."""
    jobs = [
        Job(f"trajectories {members.start} to {members.stop}", _MODULE, _task(plan, members, path))
        for members, path in missing
    ]
    placement = Placement(((),) * min(workers, len(jobs)), threads=None)
    heard = 0

    def watch(standing: Standing) -> None:
        nonlocal heard
        if len(standing.outcomes) > heard:
            heard = len(standing.outcomes)
            ended(heard)

    for place, outcome in run_jobs(jobs, placement=placement, watch=watch).outcomes.items():
        if outcome.state != "finished":
            raise ValueError(f"{jobs[place].name}: {outcome.error}")


def _task(plan: SwarmPlan, members: range, path: Path) -> dict[str, Any]:
    """A group of a plan for another process."""
    frame = {name: getattr(plan.frame, name).tolist() for name in _GEOMETRY}
    starts = {name: getattr(plan, name)[members.start : members.stop].tolist() for name in _STARTS}
    return {
        **{name: getattr(plan, name) for name in ("models", "diabatic", "state", "record_every")},
        **starts,
        "frame": frame | {"source": plan.frame.source, "index": plan.frame.index},
        "settings": asdict(plan.settings),
        "rule": None if plan.rule is None else asdict(plan.rule),
        "first": members.start,
        "path": str(path),
    }


def do_group(task: dict[str, Any], stop: Callable[[], bool]) -> bool:
    """The group that a task describes; False where `stop` ended it, and nothing is left of it."""
    width = task["settings"]["width"]
    settings = task["settings"] | {"width": tuple(width) if isinstance(width, list) else width}
    geometry: dict[str, Any] = {name: np.array(task["frame"][name]) for name in _GEOMETRY}
    labels: dict[str, Any] = dict.fromkeys(("energy", "forces", "stress"))
    whence: dict[str, Any] = {"source": task["frame"]["source"], "index": task["frame"]["index"]}
    plan = SwarmPlan(
        models=tuple(task["models"]),
        diabatic=task["diabatic"],
        frame=Frame(**geometry, **labels, **whence, config_type="Default", weight=1.0),
        positions=np.array(task["positions"]),
        velocities=np.array(task["velocities"]),
        state=task["state"],
        settings=HopSettings(**settings),
        rule=None if task["rule"] is None else StopRule(**task["rule"]),
        record_every=task["record_every"],
    )
    members = range(len(plan.positions))
    return _run_group(plan, members, Path(task["path"]), first=task["first"], stop=stop)


def _run_group(
    plan: SwarmPlan,
    members: range,
    path: Path,
    *,
    first: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Some trajectories from beginning to end, and their file; False where `stop` ended it.

    `first` is the number in the whole swarm of the first trajectory of the plan.
    """
    tune_process()
    states = States.load(plan.models, diabatic=plan.diabatic)
    surfaces = LearntSurfaces(states, plan.frame, plan.rule)
    rows, masses = np.array(members), surfaces.masses
    swarm = begin(
        surfaces,
        plan.positions[rows],
        plan.velocities[rows],
        masses,
        np.full(len(rows), plan.state),
        index=first + rows,
    )
    records, latest = [swarm], swarm
    drift, hops, before = np.zeros(len(rows)), np.zeros(len(rows), dtype=np.int64), swarm.active
    for latest in run(surfaces, swarm, masses, plan.settings):
        if stop():
            return False
        drift = np.maximum(drift, np.abs(latest.total_energy(masses) - latest.start_energy))
        hops += latest.active != before
        before = latest.active
        if latest.step % plan.record_every == 0:
            records.append(latest)
    atoms = len(plan.frame.numbers)
    going = np.stack([record.status == 0 for record in records])
    arrays = {
        "times": np.array([r.step * plan.settings.timestep for r in records]),
        "active": np.where(going, np.stack([r.active for r in records]), -1),
        "populations": np.stack([r.populations for r in records]),
        "positions": np.stack([r.positions.reshape(-1, atoms, 3) for r in records]),
        "status": latest.status,
        "drift": drift,
        "hops": hops,
    }
    _save(path, arrays)
    return True


def _save(path: Path, arrays: dict[str, Array | Whole]) -> None:
    from io import BytesIO

    kept = BytesIO()
    np.savez_compressed(kept, **arrays)  # type: ignore[arg-type]
    write_atomically(path, kept.getvalue())


def _told(rule: StopRule) -> dict[str, str]:
    """A rule as files of plans tell it, which keep the names of 0.1."""
    names = {"max_force_error": "bound", "over_atoms": "over"}
    return {names.get(name, name): repr(value) for name, value in asdict(rule).items()}


def _same_plan(plan: SwarmPlan, path: Path) -> None:
    """Refuse to mix trajectories of different plans in one folder."""
    told = {
        "models": list(plan.models),
        "diabatic": plan.diabatic,
        "state": plan.state,
        "settings": {k: repr(v) for k, v in asdict(plan.settings).items()},
        "rule": None if plan.rule is None else _told(plan.rule),
        "record_every": plan.record_every,
        "start": [len(plan.positions), float(plan.positions.sum()), float(plan.velocities.sum())],
    }
    if path.exists():
        if json.loads(path.read_text()) != told:
            raise ValueError(
                f"{path.parent}: holds trajectories of other settings, potentials or starts; "
                "give another folder, or the same settings to continue"
            )
        return
    write_atomically(path, (json.dumps(told, indent=1) + "\n").encode())


if __name__ == "__main__":
    sys.exit(do_task(do_group))
