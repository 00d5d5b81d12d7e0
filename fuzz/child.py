"""Try cases one after another and say on standard output what came of each.

    python fuzz/child.py artifacts 0 100 200     kind, seed, first case, end

A line "case n" comes before a case, "done n result" after it. A case may use ten seconds of CPU and
two gigabytes more than an idle process; whatever else happens is for the parent to see.
"""

from __future__ import annotations

import importlib
import random
import resource
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

SECONDS, MEMORY = 10, 2 * 2**30


def main(kind: str, seed: int, start: int, end: int) -> None:
    """Try some cases."""
    warnings.simplefilter("ignore")
    cases = importlib.import_module(kind)
    sys.setrecursionlimit(1000)
    with tempfile.TemporaryDirectory() as folder:
        _one(cases, seed, start, Path(folder))  # everything is imported and compiled
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        for number in range(start, end):
            print(f"case {number}", flush=True)
            spent = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(spent.ru_utime + spent.ru_stime) + SECONDS + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            print(f"done {number} {_one(cases, seed, number, Path(folder))}", flush=True)


def _one(cases: object, seed: int, number: int, folder: Path) -> str:
    draw = random.Random(f"{seed} {number}")
    path = cases.write_case(number, draw, folder)  # type: ignore[attr-defined]
    try:
        return str(cases.try_case(path))  # type: ignore[attr-defined]
    except cases.EXPECTED as error:  # type: ignore[attr-defined]
        return "refused" if str(error).strip() else "refused without a message"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error).replace("\n", " ")[:200]
        return f"raw {type(error).__name__} at {last.filename}:{last.lineno}: {text}"
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1], *(int(each) for each in sys.argv[2:5]))
