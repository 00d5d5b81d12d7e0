"""Train a peer for a fixed time and print its test errors.

.bench/mace/bin/python benchmarks/peers/train.py mace mace-64 .bench/data/3bpa \
    --minutes 10 --lr 0.01 --output .bench/results/mace.json

The loop is ours, for the codes' own ones count epochs: Adam with AMSGrad, moving average, gradient
clipping, and the warm-up and cosine over time that `bayrace train` uses. Model, parameter groups,
loss weights and decay of the average are the peer's. Loading, neighbour lists and compilation are
not counted; validation is. Time is that of the processor divided by the number of threads: on an
idle machine the time of the clock, on a busy one what the clock would have shown.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import Peer, load_peer, read, statistics
from muon import Muon
from torch import Tensor

WARMUP = 100  # steps
FLOOR = 0.01  # of the learning rate
CLIP = 10.0
BATCH = 5  # structures
VALID_EVERY = 5  # epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["mace", "nequip"])
    parser.add_argument("size")
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--optimiser", choices=["amsgrad", "muon"], default="amsgrad")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cutoff", type=float, default=5.0)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peer = load_peer(options.peer)
    train = read(options.data / "train.xyz")
    known = statistics(train, options.cutoff)
    model = peer.build(options.size, known, options.seed)
    sets = {path.stem: read(path) for path in sorted(options.data.glob("test_*.xyz"))}
    sets["valid"] = read(options.data / "valid.xyz")
    tests = {
        name: [peer.collate(part) for part in parts(peer.graphs(frames, known), 10)]
        for name, frames in sets.items()
    }
    steps = fit(peer, model, peer.graphs(train, known), tests.pop("valid"), options)
    result: dict[str, Any] = {key: str(value) for key, value in vars(options).items()}
    result |= {"steps": steps, "test": {name: errors(peer, model, b) for name, b in tests.items()}}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def fit(
    peer: Peer,
    model: torch.nn.Module,
    graphs: list[Any],
    valid: list[Any],
    options: argparse.Namespace,
) -> int:
    """Train until time is up and leave the best averaged weights in the model; steps made."""
    groups = peer.parameter_groups(model, options.lr)
    optimiser = (
        Muon(model, groups)
        if options.optimiser == "muon"
        else torch.optim.Adam(groups, amsgrad=True)
    )
    parameters = [p for p in model.parameters() if p.requires_grad]
    average = [p.detach().clone() for p in parameters]
    best, best_error = [p.clone() for p in average], math.inf
    generator = torch.Generator().manual_seed(options.seed)
    loss_of(peer, model, peer.collate(graphs[:BATCH])).backward()  # compiles what compiles lazily
    budget, start, step, epoch = options.minutes * 60, clock(options), 0, 0
    while clock(options) - start < budget:
        order = torch.randperm(len(graphs), generator=generator).tolist()
        for chosen in parts(order, BATCH):
            used = (clock(options) - start) / budget
            if used >= 1:
                break
            cosine = 0.5 * (1 + math.cos(math.pi * used))
            rate = min(1, (step + 1) / WARMUP) * (FLOOR + (1 - FLOOR) * cosine)
            for group in optimiser.param_groups:
                group["lr"] = options.lr * rate
            optimiser.zero_grad(set_to_none=True)
            loss = loss_of(peer, model, peer.collate([graphs[i] for i in chosen]))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimiser.step()
            step += 1
            decay = min(peer.ema, (1 + step) / (10 + step))
            torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - decay)
        epoch += 1
        if epoch % VALID_EVERY == 0 or clock(options) - start >= budget:
            with Swapped(parameters, average):
                error = errors(peer, model, valid)["forces"]
            if error < best_error:
                best, best_error = [p.clone() for p in average], error
            minutes = (clock(options) - start) / 60
            print(f"{minutes:6.2f} min  step {step}  valid F {error:.1f} meV/Å", file=sys.stderr)
    for parameter, value in zip(parameters, best, strict=True):
        parameter.data.copy_(value)
    return step


def clock(options: argparse.Namespace) -> float:
    """Seconds of processor time per thread."""
    return time.process_time() / options.threads


def loss_of(peer: Peer, model: torch.nn.Module, batch: Any) -> Tensor:
    """Weighted squared errors of energy per atom and of forces."""
    out = peer.predict(model, batch, training=True)
    energy = ((out.energy - out.energy_label) / out.atoms).square().mean()
    forces = (out.forces - out.forces_label).square().mean()
    return peer.weights[0] * energy + peer.weights[1] * forces


def errors(peer: Peer, model: torch.nn.Module, batches: list[Any]) -> dict[str, float]:
    """RMSE of total energies (meV) and force components (meV/Å)."""
    found: dict[str, list[Tensor]] = {"energy": [], "forces": []}
    for batch in batches:
        out = peer.predict(model, batch, training=False)  # may hold a graph: keep errors only
        found["energy"].append((out.energy - out.energy_label).detach().double())
        found["forces"].append((out.forces - out.forces_label).detach().double())
    return {
        name: 1000 * float(torch.cat(parts).square().mean().sqrt()) for name, parts in found.items()
    }


class Swapped:
    """Put other weights into the parameters for a while."""

    def __init__(self, parameters: list[Tensor], values: list[Tensor]) -> None:
        self.parameters, self.values = parameters, values

    def __enter__(self) -> None:
        self.kept = [p.data for p in self.parameters]
        for parameter, value in zip(self.parameters, self.values, strict=True):
            parameter.data = value

    def __exit__(self, *_: object) -> None:
        for parameter, value in zip(self.parameters, self.kept, strict=True):
            parameter.data = value


def parts(items: list[Any], size: int) -> list[list[Any]]:
    """Consecutive pieces of at most `size`."""
    return [items[i : i + size] for i in range(0, len(items), size)]


if __name__ == "__main__":
    main()
