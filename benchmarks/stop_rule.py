"""Does the stop rule act before forces are wrong? Dynamics with the oracle looking on.

    python benchmarks/stop_rule.py model.bayrace [--runs 20] [--steps 4000] [--temperature 1000]

Every run starts from another frame of ethanol at 300 K. At every look the true forces are computed
by GFN2-xTB. A run is honest if no true error exceeded the bound before the rule stopped it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayrace.active.dynamics import DynamicsSettings, ExplodedError, simulate
from bayrace.active.oracle import OracleError
from bayrace.active.oracles.xtb import XtbOracle
from bayrace.active.stop import StopRule
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.potential import Potential


@dataclass
class Run:
    start: int
    stopped: bool = False
    exploded: bool = False
    fs: float = 0.0
    error_before: float = 0.0  # eV/Å, largest of any atom at the looks before the last
    error_last: float = 0.0  # at the last look
    wrong_since: float | None = None  # fs, when the error first exceeded the bound


def main() -> None:
    options = arguments()
    potential = Potential.load(options.model, device="cpu")
    rule = StopRule(options.bound, options.probability, over=options.over)
    starts = embedded_frames("ethanol-test")
    runs, begin = [], time.monotonic()
    for number in range(options.runs):
        runs.append(one(potential, starts, number, rule, options))
        print(json.dumps(vars(runs[-1])), f"{time.monotonic() - begin:.0f} s", flush=True)
    report(runs, rule)
    if options.output is not None:
        options.output.write_text(json.dumps([vars(run) for run in runs], indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--look-every", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=1000.0)
    parser.add_argument("--bound", type=float, default=0.5)
    parser.add_argument("--probability", type=float, default=0.05)
    parser.add_argument("--over", choices=("any", "max"), default="any")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def one(
    potential: Potential,
    starts: list[Frame],
    number: int,
    rule: StopRule,
    options: argparse.Namespace,
) -> Run:
    place = number * len(starts) // options.runs
    settings = DynamicsSettings(
        "nvt", options.temperature, options.steps, look_every=options.look_every, seed=number
    )
    run = Run(place)
    try:
        for look in simulate(potential, starts[place], settings, rule=rule):
            run.error_before = max(run.error_before, run.error_last)
            truth = XtbOracle().label(frame_from_atoms(look.atoms, keys=None))
            error = np.linalg.norm(truth.forces - look.results["forces"], axis=1).max()
            run.error_last, run.fs, run.stopped = float(error), look.time, look.broken
            if error > rule.bound and run.wrong_since is None:
                run.wrong_since = look.time
    except (ExplodedError, OracleError):
        run.exploded, run.error_before = True, float("inf")
    return run


def report(runs: list[Run], rule: StopRule) -> None:
    stopped = sum(run.stopped for run in runs)
    honest = sum(run.error_before <= rule.bound for run in runs)
    right = sum(max(run.error_before, run.error_last) <= rule.bound for run in runs)
    through = sum(not run.stopped and not run.exploded for run in runs)
    median = np.median([run.fs for run in runs])
    print(f"rule: P(|force error on {rule.over} atom| > {rule.bound} eV/Å) > {rule.probability}")
    print(f"{len(runs)} runs: {stopped} stopped, {through} ran through, median {median:.0f} fs")
    print(f"error within the bound at every look before the stop: {honest}/{len(runs)}")
    print(f"and at the stop as well: {right}/{len(runs)}")


if __name__ == "__main__":
    main()
