"""Does the stop rule act before forces are wrong? Dynamics with the oracle looking on.

    python benchmarks/active/stop_rule.py model.bayrace [--runs 20] [--steps 4000] [--gap off]

Every run starts from another frame of ethanol at 300 K. At every look the true forces are computed
by GFN2-xTB. A run goes on after the rule has spoken, until the true error exceeds the bound too or
the steps are over, to tell how early the rule was. It is honest if the rule spoke no later than
that, at the same look included, and early if it did at a look before.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from bayrace.cli.rules import gap_limit
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import frame_from_atoms
from bayrace.label.oracle import OracleError
from bayrace.label.oracles.xtb import Gfn2
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings, ExplodedError, simulate
from bayrace.simulate.stop import StopRule


@dataclass
class Run:
    start: int
    fs: float = 0.0  # length
    stop: float = math.inf  # fs, when the rule spoke
    wrong: float = math.inf  # fs, when the error of an atom exceeded the bound
    error: float = 0.0  # eV/Å, largest of any atom at any look up to the stop
    exploded: bool = False


def main() -> None:
    options = arguments()
    options.gap = gap_limit(options.gap, Potential.load(options.model, device="cpu"))
    runs, begin = [], time.monotonic()
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for run in pool.map(partial(one, options), range(options.runs)):
            runs.append(run)
            print(json.dumps(vars(run)), f"{time.monotonic() - begin:.0f} s", flush=True)
    report(runs, rule_of(options))
    if options.output is not None:
        options.output.write_text(json.dumps([vars(run) for run in runs], indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4000, help="of 0.5 fs")
    parser.add_argument("--uncertainty-every", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=1000.0)
    parser.add_argument("--bound", type=float, default=0.5)
    parser.add_argument("--probability", type=float, default=0.05)
    parser.add_argument("--over", choices=("any", "max"), default="any")
    parser.add_argument(
        "--gap", default="auto", help="Å, of distances that training lacks; auto as in md; off"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def rule_of(options: argparse.Namespace) -> StopRule:
    return StopRule(
        options.bound,
        options.probability,
        over_atoms=options.over,
        action="record",
        gap=options.gap,
    )


def one(options: argparse.Namespace, number: int) -> Run:
    torch.set_num_threads(1)
    potential, rule = Potential.load(options.model, device="cpu"), rule_of(options)
    starts = embedded_frames("ethanol-test")
    place = number * len(starts) // options.runs
    settings = DynamicsSettings(
        "nvt",
        options.temperature,
        options.steps,
        uncertainty_every=options.uncertainty_every,
        seed=options.seed + number,
    )
    run = Run(place)
    try:
        for look in simulate(potential, starts[place], settings, rule=rule):
            truth = Gfn2().label(frame_from_atoms(look.atoms, keys=None))
            error = float(np.linalg.norm(truth.forces - look.results["forces"], axis=1).max())
            run.fs = look.time
            if run.stop == math.inf:
                run.error = max(run.error, error)
            if look.broken:
                run.stop = min(run.stop, look.time)
            if error > rule.max_force_error:
                run.wrong = min(run.wrong, look.time)
            if math.isfinite(run.stop) and math.isfinite(run.wrong):
                break
    except (ExplodedError, OracleError):
        run.exploded, run.wrong = True, min(run.wrong, run.fs)
    return run


def report(runs: list[Run], rule: StopRule) -> None:
    count = len(runs)
    stopped = [run for run in runs if math.isfinite(run.stop)]
    wrong = [run for run in runs if math.isfinite(run.wrong)]
    honest = sum(run.stop <= run.wrong for run in runs)
    early = sum(run.stop < run.wrong or run.wrong == math.inf for run in runs)
    error = f"|force error on {rule.over_atoms} atom|"
    print(f"rule: P({error} > {rule.max_force_error} eV/Å) > {rule.probability}")
    if rule.gap is not None:
        print(f"or a distance further than {rule.gap} Å from those of the training data")
    print(f"{count} runs, {len(stopped)} stopped{middle([run.stop for run in stopped])}")
    print(f"forces wrong by more than the bound in {len(wrong)}{middle([r.wrong for r in wrong])}")
    print(f"stopped at or before the first look with a wrong force, or none was: {honest}/{count}")
    print(f"stopped at an earlier look, or none was: {early}/{count}")
    print(f"largest error up to the stop: {max(run.error for run in runs):.2f} eV/Å")


def middle(values: list[float]) -> str:
    return f", after {np.median(values):.1f} fs (median)" if values else ""


if __name__ == "__main__":
    main()
