"""What the cases share: data, commands that can be killed, and comparisons of what they leave."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import ase.io
import numpy as np
import psutil
import torch

from bayrace.cli.main import app
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import frame_to_atoms
from bayrace.potential.potential import Potential
from bayrace.train import checkpoint
from bayrace.workflow import fit, train  # noqa: F401 - so that commands need not

COUNTING = Path(__file__).parents[1] / "tests" / "label" / "counting.py"


class SoakError(AssertionError):
    """Something was lost, torn, paid twice or wrong."""


@dataclass(frozen=True)
class Amount:
    """How much is tried."""

    train: int  # kills
    label: int
    loop: int
    steps: int  # of molecular dynamics
    frames: int  # of a pool
    atoms: int  # of a structure


FULL = Amount(train=100, label=50, loop=30, steps=20_000, frames=100_000, atoms=103_823)
SHORT = Amount(train=4, label=4, loop=3, steps=2_000, frames=2_000, atoms=40_000)


def ethanol(folder: Path, name: str, count: int) -> Path:
    """A file with some embedded structures."""
    path = folder / f"{name}.xyz"
    frames = embedded_frames(f"ethanol-{name}")[:count]
    ase.io.write(path, [frame_to_atoms(frame) for frame in frames], format="extxyz")
    return path


def start(*arguments: object) -> Command:
    """A command of bayrace in a session of its own: a fork of us, who have imported everything."""
    printed = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Command(psutil.Process(pid), printed)
    os.setsid()
    for stream in (1, 2):
        os.dup2(printed.fileno(), stream)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stdout
    code = 1
    try:
        code = app(list(map(str, arguments)), standalone_mode=False) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


@dataclass(frozen=True, eq=False)
class Command:
    """A process that runs a command, and what it prints."""

    process: psutil.Process
    printed: IO[str]

    def wait(self, seconds: float | None = None) -> int:
        """Its exit code; psutil.TimeoutExpired if it has none by then."""
        return int(self.process.wait(seconds))

    def said(self) -> str:
        """What it has printed."""
        self.printed.seek(0)
        return self.printed.read()

    def used(self) -> float:
        """Seconds of CPU, those of its own processes included, which no busy machine changes."""
        total = 0.0
        for each in (self.process, *self.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(each.cpu_times()[:4])  # own and of children that have ended
        return total


def finish(*arguments: object, code: int = 0) -> str:
    """Run a command to its end, which must have this exit code."""
    command = start(*arguments)
    ended = command.wait()
    if ended != code:
        raise SoakError(f"{arguments[0]} ended with {ended}, not {code}:\n{command.said()}")
    return command.said()


def kill_after(seconds: float, *arguments: object, everyone: bool = True) -> bool:
    """Kill -9 a command after so many seconds of CPU; False if it had ended by itself before."""
    command = start(*arguments)
    while True:
        try:
            ended = command.wait(_POLL)
            break
        except psutil.TimeoutExpired:
            if command.used() < seconds:
                continue
        if everyone:
            os.killpg(command.process.pid, signal.SIGKILL)
        else:
            command.process.kill()  # its own processes live on, as after a crash of the parent
        command.wait()
        return True
    if ended:
        raise SoakError(f"{arguments[0]} ended with {ended}:\n{command.said()}")
    return False


_POLL = 0.02  # s between two looks at the CPU that a command has used


def need(condition: bool, message: str) -> None:
    """Fail with a message."""
    if not condition:
        raise SoakError(message)


def same_checkpoints(one: Path, other: Path) -> None:
    """The last and best weights of two runs are equal bit for bit."""
    for name in (checkpoint.LAST, checkpoint.BEST):
        first, second = (checkpoint.load(folder / name)[0] for folder in (one, other))
        need(first.keys() == second.keys(), f"{name}: other tensors")
        for key, value in first.items():
            need(torch.equal(value, second[key]), f"{name}: {key} differs")


def same_potentials(one: Path, other: Path) -> None:
    """Two files have the same weights, posterior and calibration, bit for bit."""
    first, second = (Potential.load(path, device="cpu") for path in (one, other))
    mine, theirs = first.posterior.tensors(), second.posterior.tensors()
    need(mine.keys() == theirs.keys(), f"{other}: other tensors")
    for key, value in mine.items():
        need(torch.equal(value, theirs[key]), f"{other}: {key} differs")
    need(first.posterior.options() == second.posterior.options(), f"{other}: other options")
    need(first.calibration == second.calibration, f"{other}: another calibration")


def same_structures(one: Path, other: Path) -> None:
    """Two files hold the same labelled structures."""
    first, second = (ase.io.read(path, index=":") for path in (one, other))
    need(len(first) == len(second), f"{len(second)} of {len(first)} structures")
    for a, b in zip(first, second, strict=True):
        need(a.get_potential_energy() == b.get_potential_energy(), "energies differ")
        need(np.array_equal(a.get_forces(), b.get_forces()), "forces differ")


def once_each(log: Path) -> int:
    """Labels that the counting oracle was paid for; none twice."""
    lines = log.read_text("utf-8").splitlines()
    need(len(set(lines)) == len(lines), f"paid twice: {len(lines) - len(set(lines))}")
    started, ended = ({line.split()[1] for line in lines if line.startswith(k)} for k in ("s", "e"))
    need(started == ended, f"{len(started - ended)} calls began and did not end")
    return len(ended)


def write_json(path: Path, content: object) -> Path:
    """JSON, which is YAML."""
    path.write_text(json.dumps(content), "utf-8")
    return path
