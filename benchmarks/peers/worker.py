"""Times one code on command: JSON lines on stdin, JSON lines on stdout.

.bench/mace/bin/python benchmarks/peers/worker.py mace --data .bench/data/3bpa --threads 2
{"do": "step", "size": "mace-64", "seconds": 2, "most": 10}

`speed.py` starts one per environment. A worker that is not asked waits for its input and takes no
time from the others.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ase import Atoms
from ase.calculators.calculator import Calculator
from ase.md.verlet import VelocityVerlet
from common import Statistics, read, statistics
from home import BENCH
from systems import CUTOFF, TIME_STEP, moving, structures

WARM_UP = 3  # calls, as TorchScript specialises its code in the first ones
WARM_UP_SECONDS = 5.0  # no further ones after that
DYNAMICS = 20  # steps between two readings of the clock


class Subject(Protocol):
    """One size of one code."""

    def step(self, budget: float, *, most: int) -> list[float]: ...

    def prepare(self, system: str) -> None: ...

    def evaluate(self, system: str, frames: list[Atoms]) -> None: ...

    def calculator(self) -> Calculator: ...


class Worker:
    """Answers the commands for one code."""

    def __init__(self, code: str, data: Path) -> None:
        self.code, self.data = code, data
        self.frames = read(data / "train.xyz")
        self.statistics: Statistics = statistics(self.frames, CUTOFF)
        self.subjects: dict[str, Subject] = {}
        self.calculators: dict[str, Calculator] = {}
        self.warm: set[tuple[str, str]] = set()

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked; `do` names the method."""
        methods = {"step": self.step, "evaluate": self.evaluate, "dynamics": self.dynamics}
        methods |= {"start": self.start, "memory": self.memory}
        return methods[command.pop("do")](**command)

    def step(self, size: str, seconds: float, most: int) -> dict[str, Any]:
        """Training steps, one reading each."""
        subject = self.subject(size)
        if (size, "step") not in self.warm:
            subject.step(WARM_UP_SECONDS, most=WARM_UP)
            self.warm.add((size, "step"))
        return {"seconds": subject.step(seconds, most=most)}

    def evaluate(self, size: str, system: str, seconds: float, most: int) -> dict[str, Any]:
        """Energies and forces of a batch, one reading each."""
        subject, frames = self.subject(size), structures(system, self.data)

        def once() -> None:
            subject.evaluate(system, frames)

        if (size, system) not in self.warm:
            readings(once, WARM_UP_SECONDS, WARM_UP)
            self.warm.add((size, system))
        return {"seconds": readings(once, seconds, most)}

    def dynamics(self, size: str, seconds: float, most: int) -> dict[str, Any]:
        """Steps of molecular dynamics in ASE, one reading for DYNAMICS of them."""
        if size not in self.calculators:
            self.calculators[size] = self.subject(size).calculator()
        atoms = moving(structures("3bpa-1", self.data)[0])
        atoms.calc = self.calculators[size]
        integrator = VelocityVerlet(atoms, TIME_STEP)
        integrator.run(WARM_UP)
        taken = readings(lambda: integrator.run(DYNAMICS), seconds, min(most, 5))
        return {"seconds": [value / DYNAMICS for value in taken]}

    def start(self, size: str) -> dict[str, Any]:
        """Build the model and do one training step; the caller holds the watch."""
        self.subject(size).step(0.0, most=1)
        return {}

    def memory(self, size: str, system: str) -> dict[str, Any]:
        """MB at most once the model is built, and after one evaluation of a fresh process."""
        subject, frames = self.subject(size), structures(system, self.data)
        subject.prepare(system)
        before = peak()
        subject.evaluate(system, frames)
        return {"before": before, "peak": peak()}

    def subject(self, size: str) -> Subject:
        """The subject of a size, built when first asked for."""
        if size not in self.subjects:
            self.subjects[size] = self._build(size)
        return self.subjects[size]

    def _build(self, size: str) -> Subject:
        if self.code == "bayrace":
            from bayrace_peer import BayraceSubject

            return BayraceSubject(size, self.data, self.statistics)
        if self.code == "apax":
            from apax_peer import ApaxSubject

            return ApaxSubject(self.frames, self.statistics)
        from peer_subject import PeerSubject

        return PeerSubject(self.code, size, self.frames, self.statistics)


def readings(call: Callable[[], object], budget: float, most: int) -> list[float]:
    """Seconds of each call, until `budget` seconds or `most` calls; at least one."""
    taken: list[float] = []
    while not taken or (len(taken) < most and sum(taken) < budget):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def peak() -> float:
    """Largest resident memory so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("code", choices=["apax", "bayrace", "e3nn", "mace", "nequip"])
    parser.add_argument("--data", type=Path, default=BENCH / "data/3bpa")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.code != "apax":  # which computes with JAX
        import torch

        torch.set_num_threads(options.threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    worker = Worker(options.code, options.data)
    for line in sys.stdin:
        try:
            result = worker.answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
