"""The runs of an exploration as files, each written when it ends: a killed one goes on from there.

Runs are spread over processes, `python -m bayrace.loop.runs`, which take a JSON document from their
standard input. Run k belongs to process k modulo their number; what they leave are files only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from bayrace.active.explore import Excursion, excursion, plan
from bayrace.config.loop import ExploreConfig, dynamics_settings, stop_rule
from bayrace.cores import usable_cores
from bayrace.data.frame import DataError, Frame, LabelKeys
from bayrace.data.read import read_frames
from bayrace.data.write import write_frames
from bayrace.potential import Potential
from bayrace.train.checkpoint import write_atomically

UNLABELLED = LabelKeys(energy=None, forces=None, stress=None, virial=None, config_type=None)
STARTS = "starts.traj"
_POLL = 0.1  # s
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_SHOWN = 2000  # characters of an error


@dataclass(frozen=True)
class Exploration:
    """What all processes of one exploration need to know."""

    model: str  # a file
    folder: str  # of the starts and the runs
    config: ExploreConfig
    seed: int

    @property
    def names(self) -> list[Path]:
        """Files of the runs, in their order."""
        starts = len(read_traj(Path(self.folder) / STARTS))
        count = starts * len(self.config.temperatures) * self.config.repeats
        return [Path(self.folder) / f"run-{number:03d}.json" for number in range(count)]


def explore_in_files(
    exploration: Exploration, starts: Sequence[Frame], *, progress: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Simulate every start at every temperature, and return what is known of each run."""
    folder = Path(exploration.folder)
    write_frames(folder / STARTS, starts)
    files = exploration.names
    told = set()

    def tell() -> None:
        for file in files:
            if file not in told and file.is_file():
                told.add(file)
                progress(json.loads(file.read_text(encoding="utf-8")))

    left = [file for file in files if not file.is_file()]
    if left:
        workers = min(exploration.config.workers or len(usable_cores()), len(left))
        _work(exploration, workers, tell)
    tell()
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def pool_of(runs: Sequence[dict[str, Any]], folder: Path) -> list[Frame]:
    """All frames of all runs, one after another."""
    return [
        frame
        for number, run in enumerate(runs)
        if run["visits"]
        for frame in read_traj(folder / f"run-{number:03d}.traj")
    ]


def read_traj(path: Path) -> list[Frame]:
    """Frames as `write_frames` wrote them."""
    return read_frames(str(path), keys=UNLABELLED, config_weights={}, require_labels=False)


def summary(run: Excursion) -> dict[str, Any]:
    """A run as JSON; times in fs, σ in eV and eV/Å."""
    visits = [
        {
            "step": visit.frame.index,
            "time": visit.time,
            "temperature": visit.temperature,
            "energy_std": visit.energy_std,
            "forces_std": visit.forces_std,
            "risk": None if np.isnan(visit.risk) else visit.risk,
            "broken": visit.broken,
        }
        for visit in run.visits
    ]
    kept = ("start", "temperature", "seed", "reason", "message", "steps")
    return {**{name: getattr(run, name) for name in kept}, "visits": visits}


def _work(exploration: Exploration, workers: int, tell: Callable[[], None]) -> None:
    """Run the processes to their end."""
    environment = os.environ | dict.fromkeys(_POOLS, "1")
    processes = []
    try:
        for number in range(workers):
            log = TemporaryFile()  # noqa: SIM115 - lives as long as the process
            processes.append((_start(exploration, number, workers, log, environment), log))
        while any(process.poll() is None for process, _ in processes):
            tell()
            time.sleep(_POLL)
        for process, log in processes:
            if process.returncode:
                log.seek(0)
                said = log.read().decode(errors="replace").strip()[-_SHOWN:]
                raise DataError(f"exploration failed: {said or process.returncode}")
    finally:
        for process, log in processes:
            process.kill()
            process.wait()
            log.close()


def _start(
    exploration: Exploration, number: int, workers: int, log: Any, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    job = {
        "model": exploration.model,
        "folder": exploration.folder,
        "config": exploration.config.model_dump(mode="json"),
        "seed": exploration.seed,
        "number": number,
        "workers": workers,
        "parent": os.getpid(),
    }
    with TemporaryFile() as description:
        description.write(json.dumps(job).encode())
        description.seek(0)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "bayrace.loop.runs"],
            stdin=description,
            stdout=log,
            stderr=log,
            env=environment,
        )


def main() -> int:
    """Do the runs that standard input asks for, as long as the parent lives."""
    from bayrace.process import settle

    job: dict[str, Any] = json.load(sys.stdin)
    settle()
    config = ExploreConfig.model_validate(job["config"])
    exploration = Exploration(job["model"], job["folder"], config, job["seed"])
    try:
        potential = Potential.load(exploration.model)
        settings = dynamics_settings(config, seed=exploration.seed)
        starts = read_traj(Path(exploration.folder) / STARTS)
        plans = plan(starts, config.temperatures, settings, repeats=config.repeats)
        for number, (file, (start, planned)) in enumerate(
            zip(exploration.names, plans, strict=True)
        ):
            if number % job["workers"] != job["number"] or file.is_file():
                continue
            if os.getppid() != job["parent"]:
                return 1
            run = excursion(
                potential,
                start,
                planned,
                rule=stop_rule(config),
                every=config.every,
                least=config.least,
            )
            if run.visits:
                frames = [visit.frame for visit in run.visits]
                write_frames(file.with_suffix(".traj"), frames)
            write_atomically(file, json.dumps(summary(run)).encode())
    except (ValueError, OSError) as error:  # their messages are for users
        print(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
