"""What uncertainty costs at prediction time, as ratios measured in turns in one run.

    python benchmarks/uncertainty_cost.py            needs an idle machine

One core and the least time of each call, as in posteriors/cost.py, so that their tables agree. A
network of preset `small` with random weights on 3BPA molecules (27 atoms), one structure and
sixteen at a time: a point prediction of energy and forces against eight members
together, eight one after another, LLPR and a shallow ensemble with the σ of the energy, and both
with force covariances.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from bayrace.config import make_config
from bayrace.config.build import lambdas, model_spec
from bayrace.core.graph import GraphBatch
from bayrace.core.protocols import Posterior
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.evaluate.metrics.cost import interleaved_times
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.network import Race
from bayrace.posterior import llpr
from bayrace.posterior.ensemble import Ensemble
from bayrace.posterior.llpr import LlprOptions
from bayrace.posterior.point import Point
from bayrace.posterior.shallow import Shallow
from bayrace.potential.potential import Potential
from bayrace.system.process import tune_process
from bayrace.workflow.train import read_splits

MEMBERS = 8
DATA = "../shared/data/3bpa/train_300K.xyz"


def potentials(frames: list[Frame], preset: str) -> dict[str, Potential]:
    config = make_config(
        {"data": {"train": DATA}, "loss": {"kind": "mse"}, "model": {"preset": preset}}
    )
    elements = tuple(sorted({int(z) for frame in frames for z in frame.numbers}))
    references = dict.fromkeys(elements, 0.0)
    data = Dataset(frames, elements=elements, cutoff=config.model.cutoff, references=references)
    known = lambdas(config.loss, data)
    spec = model_spec(config, data)
    model = Race(spec)
    weights = [model.init(seed) for seed in range(MEMBERS)]
    noise = NoiseSpec("shallow", "extensive", "equivariant", stress=False, members=16)
    several = Race(replace(spec, noise=noise))

    def potential(posterior: Posterior, race: Race = model) -> Potential:
        return Potential(
            spec=race.spec,
            posterior=posterior,
            references=references,
            lambdas=known,
            statistics={},
            config={},
            fingerprint="",
        )

    def rigidity(force_samples: int) -> Potential:
        options = LlprOptions(1e-6, force_samples=force_samples, force_rows=0)
        return potential(llpr.fit(model, weights[0], data, data, options=options, lambdas=known))

    return {
        "point": potential(Point(weights[0])),
        "members": potential(Ensemble.of(weights)),
        **{f"member {k}": potential(Point(each)) for k, each in enumerate(weights)},
        "llpr": rigidity(0),
        "llpr, 16 directions": rigidity(16),
        "shallow": potential(Shallow.of(several, several.init(0), energy_weight=1.0), several),
    }


def jobs(all_of_them: dict[str, Potential], frames: list[Frame]) -> dict:
    """Named calls; most predict the same batch, which is collated beforehand."""
    batch = batch_of(all_of_them["point"], frames)
    members = [all_of_them[f"member {k}"] for k in range(MEMBERS)]
    return {
        "point": lambda: all_of_them["point"].predict_batch(batch),
        "8 members together": lambda: all_of_them["members"].predict_batch(batch),
        "8 one after another": lambda: [each.predict_batch(batch) for each in members],
        "  with their graphs, together": lambda: all_of_them["members"].predict(frames),
        "  with their graphs, apart": lambda: [each.predict(frames) for each in members],
        "LLPR, energy σ": lambda: all_of_them["llpr"].predict_batch(batch, uncertainty="energy"),
        "shallow 16, energy σ": lambda: all_of_them["shallow"].predict_batch(
            batch, uncertainty="energy"
        ),
        "shallow 16, force Σ": lambda: all_of_them["shallow"].predict_batch(batch),
        "LLPR, force Σ by 16": lambda: all_of_them["llpr, 16 directions"].predict_batch(batch),
        "LLPR, force Σ exactly": lambda: all_of_them["llpr"].predict_batch(batch),
    }


def batch_of(potential: Potential, frames: list[Frame]) -> GraphBatch:
    data = Dataset(
        frames,
        elements=potential.elements,
        cutoff=potential.model.cutoff,
        references=potential.references,
    )
    return data.batch(range(len(frames)), dtype=potential.dtype)[0]


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Least seconds of each call, taken in turns: other work on the machine only ever adds."""
    least = interleaved_times(list(calls.values()), rounds=rounds).min(axis=0)
    return dict(zip(calls, least.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--data", default=DATA, help="file of structures")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16], help="structures at once")
    options = parser.parse_args()
    tune_process()
    torch.set_num_threads(1)
    frames = read_splits(make_config({"data": {"train": options.data}})).train[:40]
    made = potentials(frames, options.preset)
    results = {}
    for size in options.sizes:
        rounds = options.rounds if size == 1 else min(5, options.rounds)
        found = in_turns(jobs(made, frames[:size]), rounds)
        results[size] = found
        print(f"{size} structure(s) of {len(frames[0].numbers)} atoms")
        for name, seconds in found.items():
            print(f"  {name:32} {1000 * seconds:9.2f} ms  {seconds / found['point']:7.2f} × point")
        for way, first, second in (
            ("graphs given", "8 members together", "8 one after another"),
            ("from frames", "  with their graphs, together", "  with their graphs, apart"),
        ):
            print(f"  together / apart, {way}: {found[first] / found[second]:.2f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
