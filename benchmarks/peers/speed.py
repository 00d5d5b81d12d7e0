"""Speed of bayrace, MACE, NequIP, apax and the e3nn formulation of RACE, interleaved in one run.

.venv/bin/python benchmarks/peers/speed.py                 everything, on an otherwise idle machine
.venv/bin/python benchmarks/peers/speed.py --short         what `make bench` runs, minutes
.venv/bin/python benchmarks/peers/speed.py --quick --only step bayrace-small mace-64

Every environment has one worker process. They are asked in turn, A B C A B C, and wait for their
input while another is timed. Prints medians and ratios to bayrace, states the bars of the project
with their outcome, and writes everything to .bench/results/speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bars import bars
from home import BENCH
from speed_tables import median, print_bars, print_tables

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PYTHON = {
    "bayrace": sys.executable,
    "e3nn": sys.executable,
    "mace": str(BENCH / "mace/bin/python"),
    "nequip": str(BENCH / "nequip/bin/python"),
    "apax": str(BENCH / "apax/bin/python"),
}
SMALL = ["bayrace-small", "mace-64", "bayrace-medium", "mace-32", "bayrace-2", "nequip-2"]
SMALL += ["bayrace-3", "nequip-3"]
COMPILED = ["nequip-2-compiled", "nequip-3-compiled"]  # their single structures run eagerly
LARGE = ["bayrace-paper", "bayrace-paper-l2", "nequip-paper"]
E3NN = ["e3nn-paper", "e3nn-paper-pruned"]
CRYSTALS = ["si-64", "si-216", "si-512", "si-1000"]

APAX = "apax-gmnn"  # not trained here

TRIAL = "bayrace-tiny"  # only where --only names it

SIZES: dict[str, list[str]] = {  # sizes for which each quantity is measured
    "step": [*SMALL, *COMPILED, *LARGE, *E3NN],
    "3bpa-1": [*SMALL, APAX, *LARGE, *E3NN],
    "3bpa-5": [*SMALL, *COMPILED, *LARGE, *E3NN],
    **{name: [*SMALL, APAX, "bayrace-paper"] for name in CRYSTALS},
    "dynamics": [*SMALL, APAX, "bayrace-paper"],
    "memory": [*SMALL, "bayrace-paper"],
    "start": ["bayrace-small", "mace-64", "bayrace-2", "nequip-2", *COMPILED, "bayrace-paper"],
    "command": ["bayrace-small", "bayrace-paper"],
}
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(10**11)}
KEEP |= {"MALLOC_TOP_PAD_": str(2**28)}
QUICK = {"step", "3bpa-1", "3bpa-5", "si-216", "dynamics"}
SHORT = ["step", "3bpa-1", "3bpa-5", "si-216", "si-1000", "dynamics"]
SHORT += ["bayrace-small", "mace-64", "bayrace-2", "bayrace-3", "nequip-2", "nequip-3", APAX]
SHORT += COMPILED


class Worker:
    """A worker process and the line to it."""

    def __init__(self, code: str, options: argparse.Namespace) -> None:
        self.code = code
        self.process = subprocess.Popen(
            [
                *(str(ROOT / PYTHON[code]), str(HERE / "worker.py"), code),
                *("--data", str(options.data), "--threads", str(options.threads)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(options),
        )

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; errors are answers too."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        dead = {"error": f"the worker of {self.code} died; run worker.py by hand to see why"}
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return dead
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else dead

    def close(self) -> None:
        """End of input ends the worker."""
        self.process.communicate()


def main() -> None:
    options = arguments()
    wanted = chosen(options)
    results: dict[str, dict[str, Any]] = {}
    workers: dict[str, Worker] = {}
    for quantity, sizes in wanted.items():
        if quantity in ("memory", "start", "command"):
            results[quantity] = alone(quantity, sizes, options)
        else:
            results[quantity] = interleaved(quantity, sizes, workers, options)
    for worker in workers.values():
        worker.close()
    verdicts = bars(results)
    print_tables(results)
    print_bars(verdicts)
    content = {"made": about(options), "results": results, "bars": verdicts}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(content, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="turns of every size (5)")
    parser.add_argument("--seconds", type=float, help="of readings in one turn (2)")
    parser.add_argument("--most", type=int, default=20, help="readings in one turn")
    parser.add_argument("--only", nargs="+", default=[], help="these quantities and sizes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep-memory", action="store_true", help="glibc keeps freed memory")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 0.5 s, fewer quantities")
    parser.add_argument("--short", action="store_true", help="3 rounds of 1 s, no paper sizes")
    parser.add_argument("--data", type=Path, default=ROOT / BENCH / "data/3bpa")
    parser.add_argument("--output", type=Path, default=ROOT / BENCH / "results/speed.json")
    options = parser.parse_args()
    rounds, seconds = (2, 0.5) if options.quick else (3, 1.0) if options.short else (5, 2.0)
    options.rounds, options.seconds = options.rounds or rounds, options.seconds or seconds
    options.only = options.only or (SHORT if options.short else [])
    return options


def chosen(options: argparse.Namespace) -> dict[str, list[str]]:
    """Sizes by quantity after --quick and --only; unknown names are refused."""
    every = {size for sizes in SIZES.values() for size in sizes} | {TRIAL}
    if unknown := set(options.only) - every - set(SIZES):
        raise SystemExit(f"--only {sorted(unknown)}: use {sorted(SIZES)} and {sorted(every)}")
    quantities = set(options.only) & set(SIZES) or (QUICK if options.quick else set(SIZES))
    sizes = set(options.only) & every or every - {TRIAL}
    found = {q: [s for s in (*SIZES[q], TRIAL) if s in sizes] for q in SIZES if q in quantities}
    return {quantity: names for quantity, names in found.items() if names}


def interleaved(
    quantity: str, sizes: list[str], workers: dict[str, Worker], options: argparse.Namespace
) -> dict[str, Any]:
    """Seconds of one quantity by size, taken in turns."""
    readings: dict[str, Any] = {size: {"seconds": []} for size in sizes}
    for turn in range(options.rounds):
        for size in sizes:
            if "error" in readings[size]:
                continue
            code = size.split("-")[0]
            if code not in workers:
                workers[code] = Worker(code, options)
            command: dict[str, Any] = {"do": quantity, "size": size}
            if quantity not in ("step", "dynamics"):
                command |= {"do": "evaluate", "system": quantity}
            answer = workers[code].ask(**command, seconds=options.seconds, most=options.most)
            note(quantity, size, turn, answer)
            if "error" in answer:
                readings[size] = answer
            else:
                readings[size]["seconds"] += answer["seconds"]
    for value in readings.values():
        if "seconds" in value:
            value["median"] = median(value["seconds"])
    return readings


def alone(quantity: str, sizes: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Quantities that need a fresh process each."""
    found: dict[str, Any] = {}
    for size in sizes:
        if quantity == "command":
            found[size] = {"median": command_start(size, options)}
        else:
            started = time.monotonic()
            worker = Worker(size.split("-")[0], options)
            more = {"system": "si-1000"} if quantity == "memory" else {}
            found[size] = worker.ask(do=quantity, size=size, **more)
            if quantity == "start" and "error" not in found[size]:
                found[size]["median"] = time.monotonic() - started
            worker.close()
        note(quantity, size, 0, found[size])
    return found


def command_start(size: str, options: argparse.Namespace) -> float:
    """Seconds from `bayrace train` to its first optimiser step, with no kernel built before."""
    preset = {"bayrace-small": "small", "bayrace-paper": "3bpa", TRIAL: "tiny"}[size]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        more = {"BAYRACE_CACHE": f"{folder}/cache"}
        started = time.monotonic()
        process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "bayrace.cli.main",
                    "train",
                    str(options.data / "train.xyz"),
                ),
                *("-o", f"output={run}", "-o", f"model.preset={preset}", "-o", "model.cutoff=5.0"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(options) | more,
        )
        while not (run / "last.ckpt").exists():  # written when everything is ready to optimise
            if process.poll() is not None:
                raise SystemExit(f"bayrace train failed with exit code {process.returncode}")
            time.sleep(0.02)
        seconds = time.monotonic() - started
        process.terminate()
        process.wait()
    return seconds


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Of a worker. By default glibc gives large blocks back, and page faults take their time."""
    threads = str(options.threads)
    more = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if threads == "1":  # JAX takes all cores otherwise
        more["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    return os.environ | more | (KEEP if options.keep_memory else {})


def note(quantity: str, size: str, turn: int, answer: dict[str, Any]) -> None:
    """One line of progress."""
    taken = answer.get("seconds")
    told = f"{1000 * median(taken):.1f} ms ({len(taken)})" if taken else json.dumps(answer)
    print(f"{quantity} {turn} {size}: {told}", file=sys.stderr)


def about(options: argparse.Namespace) -> dict[str, Any]:
    """Where and how this was measured."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "threads": options.threads,
        "rounds": options.rounds,
        "keep_memory": options.keep_memory,
    }


if __name__ == "__main__":
    main()
