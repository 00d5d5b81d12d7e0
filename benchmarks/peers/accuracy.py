"""Errors after equal time: bayrace, MACE and NequIP trained on the same frames, one core each.

python benchmarks/peers/accuracy.py --minutes 10 --sets 3bpa aspirin --optimisers amsgrad muon

Runs what is missing in .bench/results, one training per core at a time, and prints the best of the
settings of each code by its error on the first test set. `--table` only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import yaml
from home import BENCH

PEERS = {"mace": "mace-64", "nequip": "nequip-3-compiled"}
STARTS = {"bayrace": "auto", "bayrace-random": "random"}  # of bayrace, everything else by default
CODES = [*STARTS, *PEERS]
OPTIMISERS = ["amsgrad", "muon"]  # that peers can have
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Training:
    """One code, data set, learning rate and time."""

    code: str
    data: str
    minutes: int
    lr: float | None = None  # bayrace has its own, and its own optimiser
    optimiser: str = "amsgrad"

    @property
    def name(self) -> str:
        if self.code in STARTS:
            return f"{self.code}-{self.data}-{self.minutes}"
        name = f"{PEERS[self.code]}-{self.data}-{self.lr}-{self.minutes}"
        return name if self.optimiser == "amsgrad" else f"{name}-{self.optimiser}"

    @property
    def settings(self) -> str:
        return "its defaults" if self.code in STARTS else f"{self.optimiser} {self.lr}"

    @property
    def result(self) -> Path:
        return BENCH / "results" / f"{self.name}.json"

    def command(self) -> list[str]:
        if self.code in STARTS:
            overrides = [f"train.max_time={self.minutes}m", f"model.start={STARTS[self.code]}"]
            overrides += ["train.threads=1", f"output={self.folder}", *self.files()]
            options = [part for override in overrides for part in ("-s", override)]
            train = [sys.executable, "-m", "bayrace.cli.main", "train", str(self.config)]
            return [*train, "--overwrite", *options]
        python = str(BENCH / self.code / "bin" / "python")
        options = ["--minutes", str(self.minutes), "--lr", str(self.lr)]
        options += ["--optimiser", self.optimiser]
        data = str(BENCH / "data" / self.data)
        script = str(HERE / "train.py")
        arguments = [self.code, PEERS[self.code], data, *options, "--output", str(self.result)]
        return [python, script, *arguments]

    @property
    def config(self) -> Path:
        return HERE / f"{self.data}.yaml"

    def files(self) -> list[str]:
        """Overrides that say where the data of the configuration are, if not in .bench."""
        data = yaml.safe_load(self.config.read_text())["data"]
        moved = json.loads(json.dumps(data).replace(".bench/", f"{BENCH}/"))
        return [f"data.{key}={json.dumps(value)}" for key, value in moved.items()]

    @property
    def folder(self) -> Path:
        return BENCH / "runs" / self.name

    def run(self, core: int) -> None:
        self.result.parent.mkdir(parents=True, exist_ok=True)
        pin = ["taskset", "-c", str(core)] if shutil.which("taskset") else []
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        log = BENCH / f"log-{self.name}.txt"
        with log.open("w") as out:
            subprocess.run(
                [*pin, *self.command()], check=True, stdout=out, stderr=out, env=environment
            )
        if self.code in STARTS:
            self.result.write_text(json.dumps(from_run(self.folder), indent=1) + "\n")


def from_run(folder: Path) -> dict[str, Any]:
    """The errors of a finished `bayrace train` in the form of train.py."""
    tests = json.loads((folder / "test.json").read_text())
    last = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
    return {
        "steps": last["step"],
        "test": {
            f"test_{name}": {
                quantity: 1000 * values[quantity]["rmse"] for quantity in ("energy", "forces")
            }
            for name, values in tests.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, nargs="+", default=[10])
    parser.add_argument("--sets", nargs="+", default=["3bpa", "aspirin"])
    parser.add_argument("--codes", nargs="+", default=CODES, choices=CODES)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.005])
    parser.add_argument("--optimisers", nargs="+", default=["amsgrad"], choices=OPTIMISERS)
    parser.add_argument("--cores", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--table", action="store_true", help="Print what there is.")
    options = parser.parse_args()
    trainings = [
        training
        for minutes in options.minutes
        for data in options.sets
        for code in options.codes
        for training in of_code(code, data, minutes, options)
    ]
    if not options.table:
        run_all([one for one in trainings if not one.result.exists()], options.cores)
    print_table(trainings)


def of_code(code: str, data: str, minutes: int, options: argparse.Namespace) -> list[Training]:
    """One training of bayrace, and of a peer one for each learning rate and optimiser."""
    if code in STARTS:
        return [Training(code, data, minutes)]
    return [
        Training(code, data, minutes, lr, optimiser)
        for lr in options.rates
        for optimiser in options.optimisers
    ]


def run_all(trainings: list[Training], cores: list[int]) -> None:
    """Every training on a core of its own."""
    free: SimpleQueue[int] = SimpleQueue()
    for core in cores:
        free.put(core)

    def one(training: Training) -> None:
        core = free.get()
        try:
            training.run(core)
        finally:
            free.put(core)

    with ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(one, trainings))


def print_table(trainings: list[Training]) -> None:
    """RMSE of total energies (meV) and force components (meV/Å), best learning rate."""
    found: dict[tuple[int, str, str], list[tuple[float, Training, dict[str, Any]]]] = {}
    for training in trainings:
        if training.result.exists():
            result = json.loads(training.result.read_text())
            error = first(result["test"])["forces"]
            place = (training.minutes, training.data, training.code)
            found.setdefault(place, []).append((error, training, result))
    for (minutes, data, _), results in found.items():
        _, training, result = min(results, key=lambda entry: entry[0])
        tried = ", ".join(f"{one.settings}: {error:.1f}" for error, one, _ in results)
        print(f"{data}, {minutes} min, {training.code}: {result['steps']} steps, {tried}")
        for name, errors in sorted(result["test"].items(), key=temperature):
            print(f"    {name[5:]:>6}  E {errors['energy']:7.1f}  F {errors['forces']:7.1f}")


def first(tests: dict[str, Any]) -> dict[str, float]:
    """The errors at the lowest temperature, that of the training data."""
    errors: dict[str, float] = min(tests.items(), key=temperature)[1]
    return errors


def temperature(entry: tuple[str, Any]) -> int:
    return int(entry[0].removeprefix("test_").removesuffix("K"))


if __name__ == "__main__":
    main()
