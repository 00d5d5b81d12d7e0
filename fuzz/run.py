"""Thousands of damaged and hostile files, each of which must end in plain words: `make fuzz`.

Every case is tried in a subprocess with limits of CPU and memory. It fails if the process dies of a
signal, uses more than ten seconds, lets an error out that is not written for users, or returns nan.
Cases follow from the seed and their number; `--only artifacts:123` tries one again.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
WALL = 600.0  # s without a word from a child


def main() -> int:
    """Fuzz, print the counts, and say by the exit code whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=int, default=5000)
    parser.add_argument("--data", type=int, default=5000)
    parser.add_argument("--configs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=250, help="cases of one subprocess")
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", help="kind:number of one case")
    options = parser.parse_args()
    if options.only:
        kind, number = options.only.split(":")
        return report(kind, *fuzz(kind, options.seed, int(number), int(number) + 1, 1))
    failed = 0
    for kind in ("artifacts", "data", "configs"):
        failed += report(
            kind, *fuzz(kind, options.seed, options.start, getattr(options, kind), options.batch)
        )
    return 1 if failed else 0


def report(kind: str, counts: Counter[str], failures: list[str]) -> int:
    """Print what came of the cases of a kind."""
    for failure in failures:
        print(f"FAILED {failure}")
    shown = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(f"{kind}: {counts.total()} cases, {len(failures)} failures ({shown})", flush=True)
    return 1 if failures else 0


def fuzz(kind: str, seed: int, start: int, end: int, batch: int) -> tuple[Counter[str], list[str]]:
    """Try cases in batches; one that takes its process with it is named, and the rest go on."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    while start < end:
        stop = min(start + batch, end)
        results, died = _batch(kind, seed, start, stop)
        for number, result in results.items():
            good = result in ("used", "refused")
            counts[result if good else "failed"] += 1
            if not good:
                failures.append(f"{kind}:{number} {result}")
        shown = f"{kind}: {counts.total()} cases so far, {len(failures)} failures"
        print(shown, *failures[-3:], sep="\n  ", file=sys.stderr, flush=True)
        start = stop
        if died is not None:
            number, how = died
            counts["failed"] += 1
            failures.append(f"{kind}:{number} {how}")
            start = number + 1
    return counts, failures


def _batch(
    kind: str, seed: int, start: int, end: int
) -> tuple[dict[int, str], tuple[int, str] | None]:
    """Results by number, and the case that its process did not survive."""
    command = [sys.executable, str(HERE / "child.py"), kind, *map(str, (seed, start, end))]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    out, silent = _listen(process)
    if silent:
        process.kill()
    words = process.communicate()[1].decode(errors="replace")
    how = "hung without using its CPU" if silent else _ended(process.returncode)
    results: dict[int, str] = {}
    trying = start
    for line in out.splitlines():
        word, _, rest = line.partition(" ")
        if word == "case":
            trying = int(rest)
        elif word == "done":
            number, _, result = rest.partition(" ")
            results[int(number)] = result
    if process.returncode == 0 and len(results) == end - start:
        return results, None
    return results, (trying, f"{how}: {words.strip()[-300:]}")


def _listen(process: subprocess.Popen[bytes]) -> tuple[str, bool]:
    """What a child says to its end, and whether it fell silent before that."""
    assert process.stdout is not None
    said = b""
    while select.select([process.stdout], [], [], WALL)[0]:
        more = os.read(process.stdout.fileno(), 2**16)
        if not more:
            return said.decode(errors="replace"), False
        said += more
    return said.decode(errors="replace"), True


def _ended(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    sys.exit(main())
