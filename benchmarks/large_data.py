"""A training on a million structures of ethanol on disk: its start, its memory, and who waits.

    python benchmarks/large_data.py [--frames 1000000] [--folder /tmp/large] [--minutes 2]

Structures are those of the embedded data, turned at random and moved by a little noise; energies
and forces are the original ones, turned along, so that nothing but speed may be learnt here. The
file is written once (about 1 GB, tens of minutes per million). Then `bayrace train` runs on it for
some minutes. Bars: first step within 60 s of the start; resident memory of each process below
2 GB; training waits for structures for at most 5 % of its time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from scipy.spatial.transform import Rotation

from bayrace.data.aselmdb import write_aselmdb
from bayrace.data.embedded import embedded_frames

NOISE = 0.002  # Å


def main(frames: int, folder: Path, minutes: float, preset: str, batch: int) -> None:
    path = folder / f"ethanol-{frames}.aselmdb"
    if not path.is_file():
        begin = time.monotonic()
        write_aselmdb(path, structures(frames))
        print(f"wrote {path} in {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{frames} frames, {path.stat().st_size / 1e9:.2f} GB", flush=True)
    output = folder / f"run-{frames}-{os.getpid()}"
    command = [sys.executable, "-m", "bayrace", "train", str(path), "-s", f"output={output}"]
    options = {
        "data.keep": "disk",
        "model.preset": preset,
        "train.batch_size": batch,
        "train.threads": 1,
        "train.max_time": f"{minutes}m",
        "posterior": "distance",
    }
    command += [part for key, value in options.items() for part in ("-s", f"{key}={value}")]
    begin = time.monotonic()
    with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        first, peak = None, {}
        while process.poll() is None:
            for name, size in memory(process.pid).items():
                peak[name] = max(peak.get(name, 0.0), size)
            if first is None and (output / "last.ckpt").is_file():
                first = time.monotonic() - begin  # written just before the first step
            time.sleep(0.1)
    report(output, first, peak)


def report(output: Path, first: float | None, peak: dict[str, float]) -> None:
    """Print the bars and what became of them."""
    last = json.loads((output / "history.jsonl").read_text().splitlines()[-1])
    busy = 1 - last["waited"] / last["elapsed"]
    print(f"first step after {first:.1f} s (bar 60)")
    for name, size in peak.items():
        print(f"largest resident memory of {name}: {size:.2f} GB (bar 2)")
    print(
        f"{last['step']} steps in {last['elapsed']:.0f} s, {last['waited']:.2f} s of them waiting "
        f"for structures: busy {100 * busy:.1f} % (bar 95)"
    )


def memory(pid: int) -> dict[str, float]:
    """Resident memory of a process and of those that it started, GB."""
    found = {"the training": _resident(pid)}
    children = Path(f"/proc/{pid}/task/{pid}/children")
    numbers = children.read_text().split() if children.exists() else []
    readers = [size for size in map(_resident, map(int, numbers)) if size]
    if readers:
        found["a reader"] = max(readers)
    return found


def _resident(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0.0
    sizes = [int(line.split()[1]) for line in lines if line.startswith("VmRSS:")]
    return sum(sizes) * 1024 / 1e9


def structures(count: int) -> Iterator[Atoms]:
    """Molecules that differ, one at a time."""
    known = embedded_frames("ethanol-train")
    random = np.random.default_rng(0)
    for number in range(count):
        frame = known[number % len(known)]
        turn = Rotation.random(random_state=random).as_matrix()
        moved = frame.positions + NOISE * random.standard_normal(frame.positions.shape)
        atoms = Atoms(frame.numbers, positions=np.round(moved @ turn.T, 6))
        forces = np.round(np.asarray(frame.forces) @ turn.T, 6)
        atoms.calc = SinglePointCalculator(atoms, energy=frame.energy, forces=forces)
        yield atoms


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/large"))
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--batch", type=int, default=16)
    main(**vars(parser.parse_args()))
