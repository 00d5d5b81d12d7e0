"""What a process of a team computes, for test_team.py: started by torchrun, not collected.

Every loss is computed by two processes that share a batch, and by one that has all of it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import torch
from runner import CUTOFF, ELEMENTS, frames

from bayrace.data.dataset import Dataset
from bayrace.likelihood.gaussian import GaussianNoise
from bayrace.likelihood.mse import SquaredError
from bayrace.models.noise import NO_NOISE, Lambdas, NoiseSpec
from bayrace.models.race.network import Race
from bayrace.testing.structures import small_spec
from bayrace.train.gradient import Item, gradient, shared_gradient
from bayrace.train.join import joined
from bayrace.train.team import Team
from bayrace.train.validate import validate

LAMBDAS = Lambdas(energy=2.0, forces=30.0, stress=500.0)
JOINT = NoiseSpec("joint", "extensive", "equivariant", stress=True)
ENERGY = NoiseSpec("energy", "extensive", "equivariant", stress=False)
SHALLOW = NoiseSpec("shallow", "extensive", "equivariant", stress=False, members=4)
LOSSES = {
    "mse": SquaredError(LAMBDAS, False, "none", 0.01),
    "huber": SquaredError(LAMBDAS, True, "huber", 0.01),
    "l1": SquaredError(LAMBDAS, False, "l1", 0.01),
    "nll_e": GaussianNoise(ENERGY, LAMBDAS, beta=0.0, warmup=False),
    "nll_jef": GaussianNoise(JOINT, LAMBDAS, beta=0.5, warmup=False),
    "warmup": GaussianNoise(JOINT, LAMBDAS, beta=0.5, warmup=True),
    "shallow": GaussianNoise(SHALLOW, LAMBDAS, beta=0.5, warmup=False),
}


def dataset() -> Dataset:
    """Clusters in a box with weights, of which some lack each of the labels."""
    made = []
    for place, frame in enumerate(frames(9, seed=4)):
        known = {
            "energy": place not in (1, 2),
            "forces": place not in (0, 2, 5),
            "stress": place % 3,
        }
        labels = {
            "energy": frame.energy,
            "forces": frame.forces,
            "stress": np.full(6, 0.01 * place),
        }
        kept = {name: labels[name] if known[name] else None for name in labels}
        box = {"cell": 9.0 * np.eye(3), "pbc": np.ones(3, dtype=bool)}
        made.append(replace(frame, weight=1.0 + 0.3 * place, **box, **kept))
    return Dataset(made, elements=ELEMENTS, cutoff=CUTOFF, references={1: 0.0, 8: 0.0})


def compare(name: str, team: Team, data: Dataset, indices: list[int]) -> float:
    """The largest relative difference of loss, parts, gradients and metrics."""
    likelihood = LOSSES[name]
    noise = likelihood.noise if isinstance(likelihood, GaussianNoise) else NO_NOISE
    sizes = {"hidden": "4x0e+4x1o+4x2e", "features": 4, "layers": 1, "cutoff": CUTOFF}
    model = Race(small_spec(ELEMENTS, noise=noise, **sizes), kernel="plain")
    start = model.init(0, dtype=torch.float64)
    params = {key: value.requires_grad_(True) for key, value in start.items()}

    def collate(chosen):
        return data.batch(chosen, dtype=torch.float64) if chosen else None

    whole = gradient(model, params, likelihood, Item(indices, collate(indices)), stress=True)
    own = team.share(indices, data.edges[indices].tolist())
    item = Item(indices, collate(own))
    totals = team.total(item.counts())
    shared = shared_gradient(model, params, likelihood, item, stress=True, team=team, totals=totals)
    pairs = [(shared.loss.total, whole.loss.total), *zip(shared.grads, whole.grads, strict=True)]
    assert shared.loss.parts.keys() == whole.loss.parts.keys()
    pairs += [(shared.loss.parts[key], value) for key, value in whole.loss.parts.items()]
    batches = [collate([place]) for place in indices]
    metrics = validate(model, params, likelihood, batches, stress=True)
    mine = batches[team.rank :: team.size]
    together = validate(model, params, likelihood, mine, stress=True, team=team)
    assert together == metrics  # bit for bit
    scale = max(float(b.detach().abs().max()) for _, b in pairs[1:])
    return max(float((a - b).detach().abs().max()) / scale for a, b in pairs)


def main() -> None:
    with joined() as team:
        data = dataset()
        for name in LOSSES:
            for indices in (list(range(9)), [3, 1, 2], [4]):  # the last leaves one without work
                worst = compare(name, team, data, indices)
                if team.leads:
                    sys.stdout.write(f"{name} {len(indices)} {worst}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
