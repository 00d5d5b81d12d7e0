"""Throughput of one process with one thread, and of several that share every batch.

    python benchmarks/ddp.py [--processes 2] [--rounds 3] [--preset small]
    python benchmarks/ddp.py --data ethanol --batch 64

The same configuration is trained by `python -m bayrace train` and by torchrun, in turns, on as many
cores as there are processes. Counted are the seconds between the end of the first epoch and that of
the last but one; validation is not among them. The bar is 1.7 for two processes on two idle cores,
with 32 rattled cells of 32 copper atoms a step. What every process repeats (optimiser, calls of
kernels) weighs more where steps are small: a few molecules of ethanol gain little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import ase.io
from ase.build import bulk
from ase.calculators.emt import EMT

from bayrace.data.embedded import embedded

BAR = 1.7  # for two processes


def main(processes: int, preset: str, batch: int, rounds: int, epochs: int, data: str) -> None:
    folder = Path(tempfile.mkdtemp())
    train = embedded("ethanol-train") if data == "ethanol" else copper(folder / "copper.xyz")
    config = {
        "data": {"train": str(train), "valid": 2},
        "model": {"preset": preset},
        "train": {"batch_size": batch, "max_epochs": epochs, "valid_every": epochs, "threads": 1},
        "posterior": "point",
        "calibrate": "none",
        "loss": {"refit_epochs": 0},
    }
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    rates: dict[int, list[float]] = {1: [], processes: []}
    for turn in range(rounds):
        for count, found in rates.items():
            found.append(rate(folder, count, output=folder / f"{turn}-{count}"))
            print(f"{count} process(es): {found[-1]:.2f} steps/s", flush=True)
    one, several = (statistics.median(found) for found in rates.values())
    print(
        f"{preset}, {batch} structures of {data} a step: {processes} processes are "
        f"{several / one:.2f} times as fast as one (bar for two: {BAR})"
    )


def copper(path: Path) -> Path:
    """Rattled cells of 32 atoms with EMT energies and forces."""
    structures = []
    for seed in range(130):
        atoms = bulk("Cu", cubic=True) * (2, 2, 2)
        atoms.rattle(0.1, seed=seed)
        atoms.calc = EMT()
        atoms.get_forces()
        structures.append(atoms)
    ase.io.write(path, structures, format="extxyz")
    return path


def rate(folder: Path, count: int, *, output: Path) -> float:
    """Steps per second of a training by so many processes."""
    launcher = [] if count == 1 else ["torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [sys.executable, "-m", *launcher, *([str(count), "-m"] if launcher else [])]
    command += ["bayrace", "train", str(folder / "config.yaml"), "-s", f"output={output}"]
    cores = sorted(os.sched_getaffinity(0))[:count]
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    lines = [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]
    first, last = lines[0], lines[-2]
    return (last["step"] - first["step"]) / (last["elapsed"] - first["elapsed"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--data", choices=("copper", "ethanol"), default="copper")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    main(**vars(parser.parse_args()))
