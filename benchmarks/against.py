"""Speed against another version of bayrace, measured in turns in one run.

    git worktree add --detach ../before d244f1f
    python benchmarks/against.py ../before/src --data ../shared/data/3bpa/train_300K.xyz

Two processes, one for each source folder, take turns: each task runs a few times in one, then in
the other, over and over. What counts is the least processor time of one thread (`--wall`: the
least time by the clock, for several threads). Training steps go through `bayrace.train.fit`,
energies and forces through `predict` on a ready graph and through the calculator of ASE on atoms
that move.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

BATCHES = (1, 5, 16)
CRYSTALS = (2, 3, 5, 10, 14)  # cells of eight silicon atoms along each side
TASKS = (
    *(f"step-{n}" for n in BATCHES),
    "predict-27",
    "md-27",
    *(f"predict-{8 * n**3}" for n in CRYSTALS),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="folder `src` of the other version")
    parser.add_argument("--data", type=Path, required=True, help="an extended XYZ file of 3BPA")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="time by the clock")
    options = parser.parse_args()
    own = Path(__file__).parents[1] / "src"
    workers = [
        Worker(
            source,
            data=options.data,
            preset=options.preset,
            threads=options.threads,
            wall=options.wall,
        )
        for source in (options.source, own)
    ]
    print(f"{'task':14} {'before, ms':>12} {'now, ms':>10} {'ratio':>7}")
    for task in options.tasks:
        before, now = in_turns(workers, task, rounds=options.rounds)
        print(f"{task:14} {before:12.2f} {now:10.2f} {before / now:7.2f}", flush=True)
    for worker in workers:
        worker.close()


def in_turns(workers: list[Worker], task: str, *, rounds: int) -> list[float]:
    """The least time of each worker for a task, ms."""
    least = [float("inf")] * len(workers)
    for _ in range(rounds):
        least = [min(old, worker.time(task)) for old, worker in zip(least, workers, strict=True)]
    return [1000 * seconds for seconds in least]


class Worker:
    """A process with one version of bayrace, which times tasks by the clock or by its own time."""

    def __init__(self, source: Path, *, data: Path, preset: str, threads: int, wall: bool) -> None:
        environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, __file__, "--serve", str(data), preset, str(threads)]
        command.append("wall" if wall else "process")
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def time(self, task: str) -> float:
        """The least seconds of a few runs."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(task, file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(data: str, preset: str, threads: str, clock: str) -> None:
    """Time the tasks that are named on standard input."""
    import torch

    from bayrace.system import process

    torch.set_num_threads(int(threads))
    getattr(process, "tune_process", getattr(process, "settle", None))()  # now, and before
    now = time.process_time if clock == "process" else time.perf_counter
    calls: dict[str, Callable[[], list[float]]] = {}
    for line in sys.stdin:
        task = line.strip()
        if task not in calls:
            calls[task] = _task(task, Path(data), preset, now)
            calls[task]()
        print(json.dumps(min(calls[task]())), flush=True)


def _task(
    name: str, data: Path, preset: str, now: Callable[[], float]
) -> Callable[[], list[float]]:
    kind, _, size = name.partition("-")
    if kind == "step":
        return _steps(data, preset, int(size), now)
    call = _predictions(data, preset, int(size)) if kind == "predict" else _dynamics(data, preset)
    repeats = max(1, 400 // int(size))

    def timed() -> list[float]:
        ticks = [now()]
        for _ in range(repeats):
            call()
            ticks.append(now())
        return [after - before for before, after in itertools.pairwise(ticks)]

    return timed


def _steps(
    data: Path, preset: str, size: int, now: Callable[[], float]
) -> Callable[[], list[float]]:
    """Training steps as `bayrace train` makes them, from one report of the loop to the next."""
    from bayrace.config.build import likelihoods, train_settings
    from bayrace.train.loop import fit
    from bayrace.workflow import train as run

    config = configuration(data, preset, size)
    prepared = run.prepare(config)
    weights = [prepared.lambdas] if hasattr(prepared, "lambdas") else []  # older ones know them

    def timed() -> list[float]:
        ticks: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            what = (
                prepared.model,
                likelihoods(config.loss, *weights),
                prepared.train,
                prepared.valid,
                train_settings(config),
                Path(folder) / "run",
            )
            hears = {
                "observer": lambda _: ticks.append(now()),
                "stop": lambda: len(ticks) > 8,
            }
            if "callbacks" in inspect.signature(fit).parameters:
                from bayrace.train.callbacks import Callbacks
                from bayrace.train.task import Task

                fit(Task(*what), callbacks=Callbacks(**hears))
            else:  # versions before
                fit(*what[:4], settings=what[4], folder=what[5], **hears)
        return [after - before for before, after in itertools.pairwise(ticks[1:])]

    return timed


def configuration(data: Path, preset: str, size: int, **train: Any) -> Any:
    """A training without validations or checkpoints, with further keys of `train`."""
    from bayrace.config import make_config

    return make_config(
        {
            "data": {"train": str(data), "valid": 20},
            "model": {"preset": preset},
            "train": {
                "batch_size": size,
                "valid_every": 10**6,
                "checkpoint_every": 3600,
                "max_epochs": 10**6,
                "device": "cpu",
                **train,
            },
        }
    )


def _potential(preset: str, elements: tuple[int, ...]) -> Any:
    """Random weights; only what all versions have in common is used."""
    from bayrace import Potential
    from bayrace.models.noise import Lambdas, NoiseSpec
    from bayrace.models.race.presets import PRESETS
    from bayrace.models.race.spec import RaceSpec
    from bayrace.posterior.point import Point

    names = {field.name for field in fields(RaceSpec)}
    values = {name: value for name, value in PRESETS[preset]["model"].items() if name in names}
    kinds = len(elements)
    values |= {
        "elements": elements,
        "mean_neighbours": 20.0,
        "noise": NoiseSpec("joint", "extensive", "equivariant", stress=False),
        "scale": 1.0,
        "shift": (0.0,) * kinds,
        "shortest": ((0.5,) * kinds,) * kinds,  # Å; watched, and never met
    }
    spec = RaceSpec(**values)
    return Potential(
        spec=spec,
        posterior=Point(spec.build().init(0)),
        references=dict.fromkeys(elements, 0.0),
        lambdas=Lambdas(1.0, 100.0, 0.0),
        statistics={},
        config={},
        fingerprint="",
    )


def _structure(data: Path, size: int) -> Any:
    import ase.build
    import ase.io
    import numpy as np

    if size == 27:
        return ase.io.read(data, 0)
    atoms = ase.build.bulk("Si", cubic=True).repeat(round((size / 8) ** (1 / 3)))
    atoms.positions += np.random.default_rng(0).normal(0, 0.05, atoms.positions.shape)
    return atoms


def prepared(data: Path, preset: str, size: int) -> tuple[Any, Any]:
    """A potential and the batch of a structure whose graph is ready."""
    from bayrace.data.batch import build_graph, collate
    from bayrace.data.frame import frame_from_atoms

    atoms = _structure(data, size)
    elements = tuple(sorted(set(atoms.numbers.tolist())))
    potential = _potential(preset, elements)
    frame = frame_from_atoms(atoms, keys=None, index=0)
    graph = build_graph(frame, elements=elements, cutoff=potential.model.cutoff)
    return potential, collate([graph], elements_count=len(elements), dtype=potential.dtype)


def _predictions(data: Path, preset: str, size: int) -> Callable[[], None]:
    """Energy and forces, with their noise."""
    from bayrace.predict.predict import predict

    potential, batch = prepared(data, preset, size)
    origins, known = potential.origins, potential.lambdas

    def call() -> None:
        predict(potential.predictive, batch)

    def earlier() -> None:
        predict(potential.model, potential.folded, batch, references=origins, lambdas=known)

    return call if hasattr(potential, "predictive") else earlier


def _dynamics(data: Path, preset: str) -> Callable[[], None]:
    """A step of dynamics in ASE."""
    import numpy as np
    from ase import units
    from ase.md.verlet import VelocityVerlet

    from bayrace import Calculator

    atoms = _structure(data, 27)
    elements = tuple(sorted(set(atoms.numbers.tolist())))
    atoms.calc = Calculator(_potential(preset, elements))
    atoms.set_momenta(np.random.default_rng(0).normal(0, 0.1, (len(atoms), 3)))
    dynamics = VelocityVerlet(atoms, 0.01 * units.fs)
    return lambda: dynamics.run(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
