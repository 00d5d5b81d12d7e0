"""What the cases share: data, commands that can be killed, and comparisons of what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
import torch

from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import frame_to_atoms
from bayrace.train import checkpoint

COUNTING = Path(__file__).parents[1] / "tests" / "active" / "counting.py"


class SoakError(AssertionError):
    """Something was lost, torn, paid twice or wrong."""


@dataclass(frozen=True)
class Amount:
    """How much is tried."""

    train: int  # kills
    label: int
    loop: int
    steps: int  # of molecular dynamics


FULL = Amount(train=100, label=50, loop=30, steps=20_000)
SHORT = Amount(train=4, label=4, loop=3, steps=2_000)


def ethanol(folder: Path, name: str, count: int) -> Path:
    """A file with some embedded structures."""
    path = folder / f"{name}.xyz"
    frames = embedded_frames(f"ethanol-{name}")[:count]
    ase.io.write(path, [frame_to_atoms(frame) for frame in frames], format="extxyz")
    return path


def start(*arguments: object) -> subprocess.Popen[str]:
    """A command of bayrace in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "bayrace.cli.main", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(*arguments: object, code: int = 0) -> str:
    """Run a command to its end, which must have this exit code."""
    with start(*arguments) as process:
        printed, _ = process.communicate()
    if process.returncode != code:
        raise SoakError(f"{arguments[0]} ended with {process.returncode}, not {code}:\n{printed}")
    return printed


def kill_after(seconds: float, *arguments: object, everyone: bool = True) -> bool:
    """Kill -9 a command after a while; False if it had ended by itself before."""
    process = start(*arguments)
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        if everyone:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()  # its own processes live on, as after a crash of the parent
        process.communicate()
        return True
    if process.returncode:
        raise SoakError(f"{arguments[0]} ended with {process.returncode}:\n{printed}")
    return False


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
