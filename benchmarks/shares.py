"""Eight members beside one prediction, and the optimiser's part of a training step.

    python benchmarks/shares.py --data ../shared/data/3bpa/train_300K.xyz

One thread, processor time, the least of several rounds in turns. The floor of eight members is
their arithmetic at the rate of fused multiply-adds in this processor's registers, and what one
prediction costs beside its program.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import against
import torch

from bayrace.config.build import likelihoods, train_settings
from bayrace.nn.codegen import blocks_of
from bayrace.nn.compiler import build, vector_bytes
from bayrace.nn.plan import parse_plan
from bayrace.nn.program.tape import Step
from bayrace.predict.predict import Predictive, predict
from bayrace.system.process import tune_process
from bayrace.train import loop, optim
from bayrace.train.callbacks import Callbacks
from bayrace.train.task import Task
from bayrace.workflow import train as run

MEMBERS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="an extended XYZ file of 3BPA")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--atoms", type=int, nargs="*", default=[27, 216])
    parser.add_argument("--optimisers", nargs="*", default=["small:muon"], help="preset:optimiser")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tune_process()
    for size in options.atoms:
        members(options.data, options.preset, size)
    for chosen in options.optimisers:
        preset, _, optimiser = chosen.partition(":")
        optimiser_share(options.data, preset, optimiser, options.steps)


def members(data: Path, preset: str, size: int) -> None:
    """One prediction, eight members, and what their arithmetic alone would take."""
    potential, batch = against.prepared(data, preset, size)
    model = potential.model
    drawn = [model.fold(model.init(seed)) for seed in range(MEMBERS)]
    stacked = {name: torch.stack([each[name] for each in drawn]) for name in drawn[0]}
    first = {name: value[0] for name, value in stacked.items()}
    alone = {name: value[:1].clone() for name, value in stacked.items()}
    written = model.compiled.program(torch.float32, folded=True, learning=False)
    single, several = (
        Predictive(model, weights, potential.origins, potential.lambdas)
        for weights in (alone, stacked)
    )
    one, eight, program = least(
        lambda: predict(single, batch),
        lambda: predict(several, batch),
        lambda: written.evaluate(first, batch),
    )
    steps = written.writer.tape.steps
    flops = 2 * sum(instructions(step, batch.n_atoms, batch.pair_edges.shape[1]) for step in steps)
    rate = peak()
    floor = MEMBERS * flops / rate + one - program
    print(
        f"{size} atoms: one prediction {1e3 * one:.2f} ms, its program {1e3 * program:.2f} ms; "
        f"{MEMBERS} members {1e3 * eight:.2f} ms = {eight / one:.2f} predictions\n"
        f"  a member takes {flops / 1e6:.0f} Mflop, done at {flops / program / 1e9:.0f} Gflop/s; "
        f"at the processor's {rate / 1e9:.0f} Gflop/s {MEMBERS} members would be "
        f"{floor / one:.1f} predictions",
        flush=True,
    )


def instructions(step: Step, atoms: int, pairs: int) -> int:
    """Fused multiply-adds of a step, counted as instructions are: a product alone counts too."""
    if step.name == "mix":
        fields = step.own[4:]
        blocks = [fields[place : place + 3] for place in range(0, len(fields), 8)]
        rows = atoms if step.inputs[1] is not None and step.inputs[1].rows == "atoms" else 0
        return rows * sum(int(dim) * int(k) * int(c) for dim, k, c in blocks)
    if step.name not in ("send", "send_back"):
        return 0
    plan = parse_plan(step.source.key)
    blocks, couplings = blocks_of(plan)
    paths, channels = len(plan.paths), step.source.channels
    read = sum(block.source_dim for block in blocks)
    if step.name == "send":  # splines, w x, and T (w x)
        return 2 * pairs * channels * (4 * paths + read + couplings)
    terms = sum(len(each) for block in blocks for each in block.terms.values())
    moves = couplings if step.outputs[0] is not None else 0  # gradients of x
    by_edge = couplings + 2 * plan.rows + moves + couplings + terms  # R; w g; x; Y
    return pairs * channels * (2 * by_edge + 4 * paths + 5 * paths)


PEAK = """
typedef float vec __attribute__((vector_size(BYTES)));
float work(long times) {
  vec sum[12], x = {0}, y = {0};
  for (int i = 0; i < 12; i++) sum[i] = y;
  for (int i = 0; i < BYTES / 4; i++) x[i] = times * 1e-20f, y[i] = 1e-9f;
  for (long k = 0; k < times; k++)
    _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) sum[i] = sum[i] * x + y;
  float all = 0;
  for (int i = 0; i < 12; i++) all += sum[i][0];
  return all;
}
"""


def peak(times: int = 10**6) -> float:
    """Flop/s of fused multiply-adds that never leave the registers."""
    size = vector_bytes()
    work = build(PEAK, {"BYTES": str(size)}).work
    work.restype, work.argtypes = ctypes.c_float, [ctypes.c_long]
    (seconds,) = least(lambda: work(times))
    return times * 12 * (size // 4) * 2 / seconds


def least(*calls: Callable[[], object]) -> list[float]:
    """Seconds of processor time of each call, in turns."""
    best = [float("inf")] * len(calls)
    for turn in range(60):
        for place, call in enumerate(calls):
            begin = time.process_time()
            call()
            taken = time.process_time() - begin
            best[place] = min(best[place], taken) if turn else best[place]
    return best


def optimiser_share(data: Path, preset: str, optimiser: str, count: int) -> None:
    """What the optimiser takes of steps as `bayrace train` makes them, five molecules each."""
    config = against.configuration(data, preset, 5, optimiser=optimiser)
    ready = run.prepare(config)
    ticks: list[float] = []
    taken: list[float] = []
    inner = optim.step

    def timed(*arguments: Any, **named: Any) -> None:
        begin = time.process_time()
        inner(*arguments, **named)
        taken.append(time.process_time() - begin)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(loop.optim, "step", timed):
        loop.fit(
            Task(
                ready.model,
                likelihoods(config.loss, ready.lambdas),
                ready.train,
                ready.valid,
                train_settings(config),
                Path(folder) / "run",
            ),
            callbacks=Callbacks(
                observer=lambda _: ticks.append(time.process_time()),
                stop=lambda: len(ticks) > count,
            ),
        )
    steps = [after - before for before, after in itertools.pairwise(ticks[2:])]
    step, own = statistics.median(steps), statistics.median(taken[3:])
    print(
        f"{preset}, {optimiser}: step {1e3 * step:.2f} ms, optimiser {1e3 * own:.2f} ms, "
        f"{own / step:.1%} (medians of {len(steps)})",
        flush=True,
    )


if __name__ == "__main__":
    main()
