"""Noise heads fitted to the errors that are left, against the known optimum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bayrace.config import make_config
from bayrace.config.build import train_settings
from bayrace.core.outputs import Params
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.likelihood.gaussian import GaussianNoise
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, NoiseSpec, noise
from bayrace.models.pair import PairModel
from bayrace.models.race.network import Race
from bayrace.testing import random_frame, small_spec
from bayrace.train.refit import refit_noise

ELEMENTS = (1, 8)
LAMBDAS = Lambdas(energy=2.0, forces=50.0, stress=1.0)
JOINT = NoiseSpec("joint", "extensive", "equivariant", stress=False)


def settings(**changes: Any) -> Any:
    config = make_config({"data": {"train": "x.xyz"}, "model": {"dtype": "float64"}})
    return replace(train_settings(config), **changes)


def frames(model: Any, params: Params, count: int, *, start: int = 0) -> list[Frame]:
    """Structures labelled by the model, with errors of 0.3 eV and 0.7 eV/Å."""
    random = np.random.default_rng(start)
    found = []
    for seed in range(start, start + count):
        frame = random_frame(ELEMENTS, 5, seed=seed, apart=1.2)
        data = dataset(model, [replace(frame, energy=0.0, forces=np.zeros((5, 3)))])
        batch, _ = data.batch([0], dtype=torch.float64)
        outputs = evaluate(model, params, batch)
        forces = outputs.forces[batch.file_order].detach().numpy()
        found.append(
            replace(
                frame,
                energy=float(outputs.energy[0]) + 0.3 * random.normal(),
                forces=forces + 0.7 * random.normal(size=forces.shape),
            )
        )
    return found


def dataset(model: Any, given: list[Frame]) -> Dataset:
    return Dataset(
        given, elements=ELEMENTS, cutoff=model.cutoff, references=dict.fromkeys(ELEMENTS, 0.0)
    )


def test_reaches_the_variance_of_the_errors() -> None:
    """One log-variance for all: its optimum is the mean square of the errors, λ or not."""
    model = PairModel(elements=ELEMENTS, cutoff=4.0, functions=4, noise_spec=JOINT)
    params = model.init(0, dtype=torch.float64)
    given = frames(model, params, 60)
    data = dataset(model, given)
    likelihood = GaussianNoise(JOINT, LAMBDAS, beta=0.5, warmup=True)
    found = refit_noise(
        model, params, likelihood, data, data, epochs=500, settings=settings(stress=False)
    )
    batch, labels = data.batch(range(60), dtype=torch.float64)
    outputs = evaluate(model, found, batch)
    spread = noise(outputs, batch, JOINT, LAMBDAS)
    assert spread.energy is not None
    assert spread.forces is not None
    energy = (outputs.energy - labels.energy).square().mean()
    forces = (outputs.forces - labels.forces).square().mean()
    torch.testing.assert_close(spread.energy.mean(), energy, rtol=0.01, atol=0)
    torch.testing.assert_close(spread.forces[0], forces * torch.eye(3).double(), rtol=0.01, atol=0)
    assert torch.equal(found["weights"], params["weights"])


def test_means_stay_and_the_best_validation_is_kept() -> None:
    model = Race(small_spec(ELEMENTS, noise=JOINT, radial_knots=16))
    params = model.init(1, dtype=torch.float64)
    train = dataset(model, frames(model, params, 24))
    valid = dataset(model, frames(model, params, 12, start=100))
    likelihood = GaussianNoise(JOINT, LAMBDAS, beta=0.5, warmup=False)

    def loss(weights: Params, data: Dataset) -> float:
        batch, labels = data.batch(range(len(data)), dtype=torch.float64)
        outputs = evaluate(model, weights, batch)
        return float(likelihood.score().loss(outputs, labels, batch).total)

    def fitted(epochs: int) -> Params:
        return refit_noise(
            model, params, likelihood, train, valid, epochs=epochs, settings=settings(stress=False)
        )

    found = fitted(20)
    assert loss(found, valid) < loss(params, valid) - 1
    batch, _ = train.batch(range(4), dtype=torch.float64)
    before, after = (evaluate(model, weights, batch) for weights in (params, found))
    assert torch.equal(before.energy, after.energy)
    assert torch.equal(before.forces, after.forces)
    assert not torch.equal(before.forces_head, after.forces_head)
    assert all(torch.equal(value, fitted(20)[name]) for name, value in found.items())
    assert all(torch.equal(value, fitted(0)[name]) for name, value in params.items())
    # heads that are at their best already are kept
    again = refit_noise(
        model, found, likelihood, valid, valid, epochs=1, settings=settings(stress=False)
    )
    assert loss(again, valid) <= loss(found, valid)
