"""How much faster two threads are than one: predictions of crystals and training steps.

    python benchmarks/threads.py --data ../shared/data/3bpa/train_300K.xyz

Two processes of this version, one with each number of threads, take turns. What counts is the least
time by the clock, so run it on a machine that does nothing else; the load is printed beside it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from against import CRYSTALS, TASKS, Worker, in_turns

SIZES = tuple(8 * n**3 for n in CRYSTALS)
CHOSEN = ("step-5", "step-16", *(f"predict-{size}" for size in SIZES if size <= 1000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="an extended XYZ file of 3BPA")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--tasks", nargs="+", default=list(CHOSEN), choices=TASKS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    source = Path(__file__).parents[1] / "src"
    several = options.threads
    workers = [
        Worker(source, data=options.data, preset=options.preset, threads=threads, wall=True)
        for threads in (1, several)
    ]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'task':14} {'1 thread, ms':>13} {f'{several} threads, ms':>15} {'ratio':>7}")
    for task in options.tasks:
        one, more = in_turns(workers, task, rounds=options.rounds)
        print(f"{task:14} {one:13.2f} {more:15.2f} {one / more:7.2f}", flush=True)
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
