"""Floating-point operations of the fused convolution and the fraction of sgemm's rate it reaches.

.venv/bin/python benchmarks/peers/counts.py --threads 1

Operations are counted from the plan, a multiplication and an addition as one each, exactly as
`codegen.py` writes them per edge and channel; the peak is the rate of torch.mm of 1024² matrices
with the same number of threads. Times are those of the operators on a batch of five 3BPA molecules.
`--instructions` counts instructions with `perf stat` where the machine has counters.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from bayrace_peer import SIZES, specification
from common import read, statistics
from home import BENCH
from systems import CUTOFF, structures
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import frame_from_atoms
from bayrace.models.race.layout import race_layout
from bayrace.nn.codegen import coupling_count
from bayrace.nn.coupling import clebsch_gordan
from bayrace.nn.plan import Plan

PASSES = ("forward", "backward", "double")
REPEATS = 20


@dataclass(frozen=True)
class Counts:
    """What a plan does for one edge and one channel."""

    loads: int  # components of x, over all paths
    couplings: int  # non-zero T[m1, m3]
    terms: int  # non-zero Clebsch–Gordan coefficients
    reached: int  # rows m3 that anything reaches

    def operations(self, name: str) -> int:
        """Multiplications and additions of a pass; T and U are per edge and left out."""
        if name == "forward":  # q = w x; a += T q
            return self.loads + 2 * self.couplings
        harmonics = self.couplings + 2 * self.terms  # z += CG (g x)
        if name == "backward":  # gw += g (T x); g *= w; gx += T g
            return 4 * self.couplings + 2 * self.reached + harmonics
        # by receiver: p = w x; q = w d + v x; a += T q; b += U p
        receiver = 4 * self.loads + 4 * self.couplings
        # by pair: gw += g (T d + U x); h = g w; l = g v; gx += U h + T l; q = w d + v x
        pairs = 8 * self.couplings + 3 * self.reached + 3 * self.loads
        return receiver + pairs + harmonics


def counts_of(plan: Plan) -> Counts:
    """Count a plan's non-zero numbers."""
    loads = couplings = terms = reached = 0
    for source, degree, target in plan.paths:
        table = np.abs(clebsch_gordan(source.l, degree, target.l)) > 1e-10
        loads += source.dim
        couplings += int(table.any(1).sum())
        terms += int(table.sum())
        reached += int(table.any((0, 1)).sum())
    assert couplings == coupling_count(plan), "the plan's couplings are counted otherwise"
    return Counts(loads, couplings, terms, reached)


def passes_of(plan: Plan, channels: int, batch: GraphBatch) -> dict[str, Callable[[], object]]:
    """The operators of a plan on random numbers, every gradient wanted."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    pairs = batch.pair_edges.shape[1]
    shapes = {
        "x": (batch.n_atoms, plan.input_dim, channels),
        "y": (pairs, plan.harmonics_dim),
        "r": (pairs, len(plan.paths), channels),
    }
    values = [draw(*shape) for shape in shapes.values()]
    tangents = [draw(*shape) for shape in shapes.values()]
    g = draw(batch.n_atoms, plan.rows, channels)
    graph = (batch.first_edge, batch.edges, batch.pair, batch.pair_edges)
    ops = torch.ops.bayrace
    return {
        "forward": lambda: ops.convolve(plan.key, *values, *graph),
        "backward": lambda: ops.convolve_backward(plan.key, g, *values, *graph, [True] * 3),
        "double": lambda: ops.convolve_double(plan.key, g, *values, *tangents, *graph, [True] * 4),
    }


def fastest(call: Callable[[], object]) -> float:
    """Seconds of the fastest of REPEATS calls; of the processor where one thread does it all."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    call()
    taken = []
    for _ in range(REPEATS):
        start = clock()
        call()
        taken.append(clock() - start)
    return min(taken)


def sgemm_peak() -> float:
    """Operations per second of a product of 1024² float32 matrices."""
    a, b = torch.randn(2, 1024, 1024)
    return 2 * 1024**3 / fastest(lambda: torch.mm(a, b))


def batch_of_five(data: Path) -> GraphBatch:
    """Five molecules of 3BPA."""
    elements = tuple(statistics(read(data / "train.xyz"), CUTOFF).elements)
    frames = [frame_from_atoms(atoms, keys=None) for atoms in structures("3bpa-5", data)]
    graphs = [build_graph(frame, elements=elements, cutoff=CUTOFF) for frame in frames]
    return collate(graphs, elements_count=len(elements), dtype=torch.float32)


def convolutions(size: str, data: Path) -> list[tuple[str, Plan, int]]:
    """Layer, plan and channels of every convolution of a size."""
    spec = specification(SIZES[size], statistics(read(data / "train.xyz"), CUTOFF))
    return [
        (layer.name, group.plan, group.channels)
        for layer in race_layout(spec)
        for group in layer.groups
    ]


def report(size: str, batch: GraphBatch, peak: float, data: Path) -> None:
    """Rate of every pass of every layer, and of the network's convolutions together."""
    edges = batch.edges.shape[1]
    done = dict.fromkeys(PASSES, 0.0)
    taken = dict.fromkeys(PASSES, 0.0)
    print(f"\n{size}: GFLOP, ms, GFLOP/s, fraction of sgemm")
    for layer, plan, channels in convolutions(size, data):
        counts = counts_of(plan)
        for name, call in passes_of(plan, channels, batch).items():
            operations = edges * channels * counts.operations(name)
            seconds = fastest(call)
            done[name] += operations
            taken[name] += seconds
            print(f"  {layer} {name:<9}{_rate(operations, seconds, peak)}")
    for name in PASSES:
        print(f"  all    {name:<9}{_rate(done[name], taken[name], peak)}")
    print(f"  all    together {_rate(sum(done.values()), sum(taken.values()), peak)}")


def _rate(operations: float, seconds: float, peak: float) -> str:
    rate = operations / seconds
    return f"{operations / 1e9:8.3f} {1e3 * seconds:8.2f} {rate / 1e9:8.1f} {rate / peak:8.3f}"


def instructions(size: str, data: Path) -> None:
    """Instructions of all passes of a size, by `perf stat` on this file, idle run subtracted."""
    perf = shutil.which("perf")
    if perf is None:
        print("instructions: no perf here")
        return
    found = []
    for repeats in (0, 10):
        command = [perf, "stat", "-x", ",", "-e", "instructions:u", sys.executable, __file__]
        command += ["--sizes", size, "--data", str(data), "--only-run", str(repeats)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        line = next(line for line in text.splitlines() if "instructions" in line)
        if not line.split(",")[0].isdigit():
            print(f"instructions: perf has no counter here ({line.split(',')[0]})")
            return
        found.append(int(line.split(",")[0]))
    print(f"{size}: {(found[1] - found[0]) / 10 / 1e9:.3f} G instructions, all passes once")


def run_only(size: str, batch: GraphBatch, data: Path, repeats: int) -> None:
    """What `instructions` counts."""
    calls = [passes_of(plan, c, batch) for _, plan, c in convolutions(size, data)]
    for passes in calls:
        for call in passes.values():
            call()
            for _ in range(repeats):
                call()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["bayrace-small", "bayrace-paper"])
    parser.add_argument("--data", type=Path, default=BENCH / "data/3bpa")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--only-run", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    batch = batch_of_five(options.data)
    if options.only_run is not None:
        run_only(options.sizes[0], batch, options.data, options.only_run)
        return
    peak = sgemm_peak()
    print(f"{batch.n_atoms} atoms, {batch.edges.shape[1]} edges, {options.threads} thread(s)")
    print(f"sgemm: {peak / 1e9:.1f} GFLOP/s")
    for size in options.sizes:
        report(size, batch, peak, options.data)
        if options.instructions:
            instructions(size, options.data)


if __name__ == "__main__":
    main()
