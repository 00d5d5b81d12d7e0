"""Members one after another, side by side, and as one vmapped model: how long each way takes.

.venv/bin/python benchmarks/members.py --preset small --members 8 --epochs 5

Trains on embedded ethanol. (a) and (b) are timed as whole trainings, start of the processes
included, and by the clock of the training loops alone. (c) is timed by its step, five structures a
batch, beside the same step of one member in the same process and with the same threads.
Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayrace.config import Config, make_config
from bayrace.config.build import likelihoods, train_settings
from bayrace.core.outputs import Params
from bayrace.data.embedded import embedded
from bayrace.models.derivatives import evaluate
from bayrace.posterior.ensemble import Ensemble
from bayrace.system.process import tune_process
from bayrace.train import optim
from bayrace.workflow import train as run
from bayrace.workflow.ensemble import train_members
from bayrace.workflow.member import SideBySide


def main() -> None:
    options = arguments()
    tune_process()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options, Path(folder))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    report(options, results, load)
    if options.output:
        content = {"options": vars(options), "load": load, "results": results}
        options.output.write_text(json.dumps(content, indent=1, default=str))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=("tiny", "small"), default="small")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2, help="of way (b), one thread each")
    parser.add_argument("--threads", type=int, default=2, help="of ways (a) and (c)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--frames", type=int, default=400, help="training structures")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of way (c)")
    parser.add_argument("--output", type=Path, help="a JSON file for the readings")
    return parser.parse_args()


def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds of everything; kernels are built before the first clock starts."""
    for _ in range(2):
        begin = time.process_time()
        run.prepare(configuration(options, folder, threads=1))
        prepared = time.process_time() - begin
    results = {"prepared": prepared}  # of every member: data, graphs, network
    print(f"before the first step: {prepared:.2f} s of the processor, for each member", flush=True)
    ways: dict[str, tuple[int, int]] = {
        "after": (1, options.threads),
        "beside": (options.workers, 1),
    }
    for name, (workers, threads) in ways.items():
        config = configuration(options, folder / name, threads=threads)
        begin = time.perf_counter()
        result = train_members(config, members=options.members, how=SideBySide(workers))
        results[name] = time.perf_counter() - begin
        results[f"{name}_loops"] = sum(member.elapsed for member in result.members) / workers
        print(f"{name}: {results[name]:.1f} s", flush=True)
    return results | steps(options, configuration(options, folder, threads=options.threads))


def configuration(options: argparse.Namespace, folder: Path, *, threads: int) -> Config:
    """A training that ends after some epochs, with its validations and checkpoints."""
    return make_config(
        {
            "output": str(folder),
            "data": {
                "train": f"{embedded('ethanol-train')}@:{options.frames}",
                "valid": str(embedded("ethanol-valid")),
            },
            "model": {"preset": options.preset},
            "train": {
                "max_epochs": options.epochs,
                "batch_size": 5,
                "threads": threads,
                "device": "cpu",
            },
        }
    )


def steps(options: argparse.Namespace, config: Config) -> dict[str, float]:
    """Median seconds of a step of one member, and of all as one vmapped model."""
    torch.set_num_threads(options.threads)
    ready, settings = run.prepare(config), train_settings(config)
    batch, labels = ready.train.batch(
        list(range(settings.batch_size)), dtype=settings.torch_dtype, device="cpu"
    )
    likelihood = likelihoods(config.loss, ready.lambdas)(0)

    def loss(params: Params) -> Tensor:
        outputs = evaluate(ready.model, params, batch)
        return likelihood.loss(outputs, labels, batch).total

    def one(params: Params) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(params), tuple(params.values()), materialize_grads=True)

    gradients = torch.func.vmap(torch.func.grad(loss))

    def all_at_once(params: Params) -> tuple[Tensor, ...]:
        return tuple(gradients({k: v.detach() for k, v in params.items()}).values())

    drawn = [ready.model.init(seed, dtype=settings.torch_dtype) for seed in range(options.members)]
    return {
        "step_one": timed(one, drawn[0], settings.optimiser, options.steps),
        "step_vmap": timed(
            all_at_once, Ensemble.of(drawn).members, settings.optimiser, options.steps
        ),
    }


def timed(
    gradients: Callable[[Params], tuple[Tensor, ...]],
    initial: Params,
    optimiser: optim.Optimiser,
    count: int,
) -> float:
    """Median seconds of gradients and update; three steps warm up."""
    params = {name: value.clone().requires_grad_() for name, value in initial.items()}
    state: Any = optim.init(optimiser, params)
    taken = []
    for _ in range(3 + count):
        begin = time.perf_counter()
        grads = gradients(params)
        optim.step(optimiser, params, grads, state, lr=1e-4)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[3:])


def report(options: argparse.Namespace, results: dict[str, float], load: float) -> None:
    """All ways with the first as the measure."""
    after, loops = results["after"], results["after_loops"]
    separate = options.members * results["step_one"]
    rows = [
        (f"(a) one after another, {options.threads} threads", after, after),
        (f"(b) {options.workers} side by side, 1 thread each", results["beside"], after),
        ("(a) training loops alone", loops, loops),
        ("(b) training loops alone", results["beside_loops"], loops),
        (f"    {options.members} steps of one member", separate, separate),
        (f"(c) one vmapped step of {options.members}", results["step_vmap"], separate),
    ]
    print(
        f"\n{options.preset}, {options.members} members, {options.epochs} epochs of "
        f"{options.frames} structures; load of the machine {load:.1f}\n"
    )
    for name, seconds, unit in rows:
        print(f"{name:42} {seconds:10.4g} s   ratio {seconds / unit:.2f}")


if __name__ == "__main__":
    main()
