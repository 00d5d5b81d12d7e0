"""Throughput of labelling: calls of one second on one and on two workers.

    python benchmarks/labelling.py [calls]

The oracle sleeps for a second and then computes EMT forces. Times are whole: the start of the
cluster and of its processes, and the writing of every label, are in them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from ase.build import bulk

from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.label.label import LabelSettings, label_frames
from bayrace.label.oracles.ase import AseOracle

CALCULATOR = """
import time
from ase.calculators.emt import EMT

class Slow(EMT):
    def calculate(self, *arguments, **options):
        time.sleep(1.0)
        super().calculate(*arguments, **options)
"""


def main(calls: int) -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "slow.py").write_text(CALCULATOR, encoding="utf-8")
    oracle = AseOracle(f"{folder}/slow.py:Slow")
    frames = [rattled(seed) for seed in range(calls)]
    seconds = {}
    for workers in (1, 2):
        store, settings = folder / f"{workers}.sqlite", LabelSettings(workers=workers)
        begin = time.monotonic()
        done = len(label_frames(frames, oracle, store=store, settings=settings).labelled)
        seconds[workers] = time.monotonic() - begin
        print(f"{workers} workers: {done} labels in {seconds[workers]:.2f} s", flush=True)
    print(f"two are {seconds[1] / seconds[2]:.2f} times as fast as one")


def rattled(seed: int) -> Frame:
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=seed + 1)
    return frame_from_atoms(atoms, keys=None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", type=int, nargs="?", default=30)
    main(parser.parse_args().calls)
