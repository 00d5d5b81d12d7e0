"""Everything that takes too long for the tests: `make soak`, or python soak/run.py --short.

Each case works in a folder of its own and says in a line what it found; the exit code is 1 if one
of them failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import FULL, SHORT, Amount, SoakError
from crowds import NotPossibleError, full_disk, long_dynamics, threads, two_processes
from kills import labelling, loop, training
from sizes import large, pools

Case = Callable[[Path, Amount, np.random.Generator], str]
CASES: dict[str, Case] = {
    "threads": threads,
    "dynamics": long_dynamics,
    "disk": full_disk,
    "folder": two_processes,
    "training": training,
    "labelling": labelling,
    "loop": loop,
    "pools": pools,
    "atoms": large,
}


def main() -> int:
    """Run the cases that were named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--short", action="store_true", help="minutes instead of hours")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of kills")
    given = parser.parse_args()
    unknown = set(given.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}")
    failed = 0
    for name in given.cases or CASES:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"soak-{name}-") as folder:
            amount = SHORT if given.short else FULL
            random = np.random.default_rng(given.seed)
            try:
                state, text = "passed", CASES[name](Path(folder), amount, random)
            except SoakError as error:
                state, text, failed = "FAILED", str(error), failed + 1
            except NotPossibleError as error:
                state, text = "skipped", str(error)
        print(f"{name:<10} {state}  {time.monotonic() - begin:.0f} s  {text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
