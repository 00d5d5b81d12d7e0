"""The runs of an exploration as files, each written when it ends: a killed one goes on from there.

Runs are spread over processes, `python -m bayrace.workflow.loop.runs`, which leave nothing but
files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayrace.config.load import make_section, plain_values_of
from bayrace.config.loop import ExploreConfig, dynamics_settings
from bayrace.data.frame import DataError, Frame, LabelKeys
from bayrace.data.read import read_frames
from bayrace.data.write import write_frames
from bayrace.potential.potential import Potential
from bayrace.report.round import RunSummary
from bayrace.simulate.explore import Excursion, excursion, plan
from bayrace.system.child import do_task
from bayrace.system.cores import usable_cores
from bayrace.system.jobs import Job, Placement, run_jobs
from bayrace.train.checkpoint import write_atomically
from bayrace.workflow.loop.steps import known

KEYS = LabelKeys(energy=None, forces=None, stress=None, virial=None, config_type=None)
STARTS = "starts.traj"


@dataclass(frozen=True)
class Visited:
    """A structure that a run kept; the structure itself is in a file beside it."""

    step: int
    time: float  # fs
    temperature: float  # K
    energy_std: float  # eV
    forces_std: float  # eV/Å, largest
    risk: float | None  # of the stop rule
    broken: bool  # whether the rule says to act


@dataclass(frozen=True)
class RunRecord:
    """A run, as its file tells it."""

    start: str
    temperature: float  # K
    seed: int
    reason: str
    message: str
    steps: int
    visits: Sequence[Visited]

    @property
    def uncertain(self) -> bool:
        """Whether it met what the rule does not allow, or flew apart."""
        return self.reason == "exploded" or any(visit.broken for visit in self.visits)

    def summary(self) -> RunSummary:
        """Without its visits."""
        risks = [visit.risk for visit in self.visits if visit.risk is not None]
        return RunSummary(
            **{name: value for name, value in vars(self).items() if name != "visits"},
            time=self.visits[-1].time if self.visits else 0.0,
            forces_std=max((visit.forces_std for visit in self.visits), default=None),
            risk=max(risks, default=None),
            uncertain=self.uncertain,
            visits=len(self.visits),
        )


@dataclass(frozen=True)
class Exploration:
    """One exploration, as everyone who takes part in it knows it."""

    model: str  # a file
    folder: str  # of the starts and the runs
    starts: tuple[str, ...]  # what the starts are called
    config: ExploreConfig
    seed: int

    @property
    def files(self) -> list[Path]:
        """Of the runs, in their order."""
        count = len(self.starts) * len(self.config.temperatures) * self.config.repeats
        return [Path(self.folder) / f"run-{number:03d}.json" for number in range(count)]

    def to_json(self) -> dict[str, Any]:
        """For another process."""
        return {**vars(self), "config": plain_values_of(self.config)}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Exploration:
        """The inverse of `to_json`."""
        config = make_section(ExploreConfig, content["config"], source="exploration")
        return Exploration(**{**content, "config": config, "starts": tuple(content["starts"])})


def explore_in_files(
    exploration: Exploration, frames: Sequence[Frame], *, progress: Callable[[RunRecord], None]
) -> list[RunRecord]:
    """Simulate from each of the frames at every temperature; what is known of each run."""
    write_frames(Path(exploration.folder) / STARTS, frames)
    told = set()

    def tell() -> None:
        for file in exploration.files:
            if file not in told and file.is_file():
                told.add(file)
                progress(read_run(file))

    left = sum(not file.is_file() for file in exploration.files)
    workers = min(exploration.config.workers or len(usable_cores()), left)
    if workers > 1:
        _in_processes(exploration, workers, tell)
    elif workers:
        perform(exploration, lambda: True, tell)
    tell()
    return [read_run(file) for file in exploration.files]


def perform(
    exploration: Exploration,
    wanted: Callable[[], bool],
    tell: Callable[[], None],
    *,
    share: tuple[int, int] = (0, 1),
) -> None:
    """Do those runs that are not done; of a share (k, n) only every n-th, from number k on."""
    config = exploration.config
    potential, rule = Potential.load(exploration.model), config.rule
    settings = dynamics_settings(config, seed=exploration.seed)
    starts = read_traj(Path(exploration.folder) / STARTS)
    plans = plan(starts, config.temperatures, settings, repeats=config.repeats)
    for number, (file, (start, planned)) in enumerate(zip(exploration.files, plans, strict=True)):
        if number % share[1] != share[0] or file.is_file():
            continue
        if not wanted():
            return
        run = excursion(
            potential, start, planned, rule=rule, every=config.every, min_steps=config.min_steps
        )
        if run.visits:
            write_frames(file.with_suffix(".traj"), [visit.frame for visit in run.visits])
        record = record_of(run, start=exploration.starts[start.index])
        write_atomically(file, json.dumps(asdict(record)).encode())
        tell()


def read_run(file: Path) -> RunRecord:
    """The run that a file tells of."""
    content = json.loads(file.read_text(encoding="utf-8"))
    visits = tuple(known(Visited, visit) for visit in content["visits"])
    return known(RunRecord, {**content, "visits": visits})


def pool_of(runs: Sequence[RunRecord], folder: Path) -> list[Frame]:
    """All frames of all runs, one after another."""
    return [
        frame
        for number, run in enumerate(runs)
        if run.visits
        for frame in read_traj(folder / f"run-{number:03d}.traj")
    ]


def read_traj(path: Path) -> list[Frame]:
    """Frames as `write_frames` wrote them."""
    return read_frames(str(path), keys=KEYS, config_weights={}, require_labels=False)


def record_of(run: Excursion, *, start: str) -> RunRecord:
    """What is kept of a run that began from a structure of this name."""
    visits = tuple(
        Visited(
            step=visit.frame.index,
            time=visit.time,
            temperature=visit.temperature,
            energy_std=visit.energy_std,
            forces_std=visit.forces_std,
            risk=None if np.isnan(visit.risk) else visit.risk,
            broken=visit.broken,
        )
        for visit in run.visits
    )
    kept = {name: getattr(run, name) for name in ("temperature", "seed", "reason", "message")}
    return RunRecord(start=start, steps=run.steps, visits=visits, **kept)


def _in_processes(exploration: Exploration, workers: int, tell: Callable[[], None]) -> None:
    task = exploration.to_json()
    jobs = [
        Job("exploration", "bayrace.workflow.loop.runs", {"exploration": task, "share": share})
        for share in ([number, workers] for number in range(workers))
    ]
    placement = Placement(((),) * workers, threads=1)
    standing = run_jobs(jobs, placement=placement, watch=lambda _: tell())
    for outcome in standing.outcomes.values():
        if outcome.state != "finished":
            raise DataError(f"exploration failed: {outcome.error}")


def share_of_runs(task: dict[str, Any], stop: Callable[[], bool]) -> bool:
    """Do the runs that another process asks for; False where `stop` ended it."""
    first, count = task["share"]
    exploration = Exploration.from_json(task["exploration"])
    perform(exploration, lambda: not stop(), lambda: None, share=(first, count))
    return not stop()


if __name__ == "__main__":
    sys.exit(do_task(share_of_runs))
