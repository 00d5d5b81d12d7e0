"""Distances in the space of features, and the scales that make variances of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bayrace.core.outputs import Params
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NO_NOISE, Lambdas, NoiseSpec, noise
from bayrace.models.race.network import Race
from bayrace.posterior.distance import Distance, DistanceOptions, fit
from bayrace.posterior.gaussian.last_layer import structure_features
from bayrace.testing import graph_of, random_frame, small_spec

ELEMENTS = (1, 8)
MODEL = Race(small_spec(ELEMENTS, noise=NO_NOISE))
PARAMS = MODEL.init(0, dtype=torch.float64)
OPTIONS = DistanceOptions(power=1.3, energy_power=1.5, regularisation=1e-6)
ONES = Lambdas(1.0, 1.0, 1.0)
CELL = 4.5 * np.eye(3)
ENERGY, FORCES, STRESS = 0.03, (0.02, 0.07), 0.4  # roots of α², c and b


def frames(count: int, *, start: int = 0, cell: np.ndarray | None = None) -> list[Frame]:
    return [
        random_frame(ELEMENTS, 8, seed=seed, apart=0.9, cell=cell)
        for seed in range(start, start + count)
    ]


def dataset(chosen: list[Frame]) -> Dataset:
    references = dict.fromkeys(ELEMENTS, 0.0)
    return Dataset(chosen, elements=ELEMENTS, cutoff=MODEL.cutoff, references=references)


def bare(train: list[Frame]) -> Distance:
    """Scales that are 1 would need labels; those of the true noise are put in."""
    guess = labelled(None, frames(3, start=900))
    found = fit(MODEL, PARAMS, dataset(train), dataset(guess), options=OPTIONS, lambdas=ONES)
    size = float(found.last.factor.norm())
    unit = unit_factor(train)
    assert size > 0
    return replace(
        found,
        last=replace(found.last, factor=ENERGY * unit),
        forces_scale=torch.tensor(FORCES, dtype=torch.float64).square(),
        stress_scale=STRESS**2,
    )


def unit_factor(train: list[Frame]) -> torch.Tensor:
    """C^-½ by an inverse of its own."""
    whole = torch.cat([features_of(frame)[1] for frame in train])
    gram = whole.T @ whole
    mean = float(torch.linalg.eigvalsh(gram).mean())
    inverse = torch.linalg.inv(gram + 1e-6 * mean * torch.eye(len(gram), dtype=torch.float64))
    return torch.linalg.cholesky((inverse + inverse.T) / 2)


def features_of(frame: Frame) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of atoms (N, D), of the structure (1, D), and elements (N,), in batch order."""
    batch = graph_of(MODEL, frame)
    hidden = evaluate(MODEL, PARAMS, batch, forces=False).last_features
    assert hidden is not None
    return hidden, structure_features(batch, hidden), batch.species


def labelled(
    truth: Distance | None,
    chosen: list[Frame],
    *,
    model: Race = MODEL,
    params: Params = PARAMS,
) -> list[Frame]:
    """Labels that are predictions with errors of exactly these variances; None: of size 1."""
    random = np.random.default_rng(0)
    result = []
    for frame in chosen:
        batch = graph_of(model, frame)
        stress = bool(frame.pbc.all())
        outputs = evaluate(model, params, batch, stress=stress)
        energy, forces = 1.0, np.ones((len(frame.numbers), 3))
        voigt = np.ones(6)
        if truth is not None:
            spread = truth.spread(model, params, batch, outputs, forces=True, stress=stress)
            assert spread.forces is not None
            energy = float(spread.energy.sqrt())
            forces = spread.forces.diagonal(dim1=-2, dim2=-1).sqrt()[batch.file_order].numpy()
            if spread.stress is not None:
                voigt = spread.stress[0].diagonal().sqrt().numpy()
        changes: dict[str, Any] = {
            "energy": float(outputs.energy) + energy * random.normal(),
            "forces": outputs.forces[batch.file_order].numpy()
            + forces * random.normal(size=forces.shape),
        }
        if outputs.stress is not None:
            changes["stress"] = outputs.stress[0].numpy() + voigt * random.normal(size=6)
        result.append(replace(frame, **changes))
    return result


def test_is_the_mahalanobis_distance_of_each_element_over_its_mean() -> None:
    train = frames(60)
    found = bare(train)
    parts = [features_of(frame) for frame in train]
    hidden, kinds = torch.cat([part[0] for part in parts]), torch.cat([part[2] for part in parts])
    own = [torch.cov(hidden[kinds == k].T, correction=0) for k in range(2)]
    count = [int((kinds == k).sum()) for k in range(2)]
    pooled = sum(n * each for n, each in zip(count, own, strict=True)) / sum(count)
    frame = frames(1, start=500)[0]
    there, _, species = features_of(frame)
    batch = graph_of(MODEL, frame)
    seen = found.distances(batch, evaluate(MODEL, PARAMS, batch))
    for k in range(2):
        share = count[k] / (count[k] + 10)
        mixed = share * own[k] + (1 - share) * pooled
        floor = 1e-6 * float(torch.linalg.eigvalsh(mixed).mean())
        inverse = torch.linalg.inv(mixed + floor * torch.eye(len(mixed), dtype=torch.float64))
        step = there[species == k] - hidden[kinds == k].mean(0)
        expected = torch.einsum("ni,ij,nj->n", step, inverse, step) / torch.trace(mixed @ inverse)
        torch.testing.assert_close(seen[species == k], expected, rtol=1e-6, atol=0)


def test_scales_of_every_element_and_quantity_are_found_again() -> None:
    """Errors drawn with known scales, on 300 structures: 5 standard errors."""
    train = frames(60, cell=CELL)
    truth = bare(train)
    valid = labelled(truth, frames(300, start=100, cell=CELL))
    found = fit(MODEL, PARAMS, dataset(train), dataset(valid), options=OPTIONS, lambdas=ONES)
    assert found.forces_scale is not None
    assert found.stress_scale is not None
    ratio = (found.last.factor.square().sum() / truth.last.factor.square().sum()).sqrt()
    assert float(ratio) == pytest.approx(1, abs=5 * (2 * 300) ** -0.5)
    scale = found.forces_scale.sqrt()
    assert float(scale[0]) == pytest.approx(FORCES[0], rel=5 * (2 * 3600) ** -0.5)
    assert float(scale[1]) == pytest.approx(FORCES[1], rel=5 * (2 * 3600) ** -0.5)
    assert found.stress_scale**0.5 == pytest.approx(STRESS, rel=5 * (2 * 1800) ** -0.5)
    assert found.noise == {"energy": 0.0, "forces": 0.0, "stress": 0.0}


def test_unknown_structures_have_larger_variances() -> None:
    train = frames(60)
    found = bare(train)
    squeezed = [replace(frame, positions=0.8 * frame.positions) for frame in frames(5, start=700)]

    def level(chosen: list[Frame]) -> tuple[float, float]:
        spreads = []
        for frame in chosen:
            batch = graph_of(MODEL, frame)
            outputs = evaluate(MODEL, PARAMS, batch)
            spreads.append(found.spread(MODEL, PARAMS, batch, outputs, forces=True, stress=False))
        energy = torch.cat([spread.energy for spread in spreads]).mean()
        forces = torch.cat([spread.forces for spread in spreads if spread.forces is not None])
        return float(energy), float(forces.diagonal(dim1=-2, dim2=-1).mean())

    home, far = level(frames(5, start=700)), level(squeezed)
    assert far[0] > 3 * home[0]
    assert far[1] > 3 * home[1]


def test_what_has_no_labels_is_not_modelled() -> None:
    train = frames(20)
    valid = [replace(frame, forces=None) for frame in labelled(None, frames(10, start=100))]
    found = fit(MODEL, PARAMS, dataset(train), dataset(valid), options=OPTIONS, lambdas=ONES)
    assert found.forces_scale is None
    assert found.stress_scale is None
    batch = graph_of(MODEL, train[0])
    outputs = evaluate(MODEL, PARAMS, batch)
    spread = found.spread(MODEL, PARAMS, batch, outputs, forces=True, stress=True)
    assert spread.forces is None
    assert spread.stress is None
    assert float(spread.energy) > 0
    silent = [replace(frame, energy=None) for frame in labelled(None, frames(10, start=100))]
    found = fit(MODEL, PARAMS, dataset(train), dataset(silent), options=OPTIONS, lambdas=ONES)
    spread = found.spread(MODEL, PARAMS, batch, outputs, forces=True, stress=False)
    assert spread.energy.isnan().all()
    assert spread.forces is not None


def test_an_element_with_one_atom_borrows_from_the_others() -> None:
    train = [replace(frame, numbers=np.ones_like(frame.numbers)) for frame in frames(30)]
    lone = np.ones_like(train[0].numbers)
    lone[0] = 8
    train[0] = replace(train[0], numbers=lone)
    found = bare(train)
    batch = graph_of(MODEL, frames(1, start=300)[0])
    distance = found.distances(batch, evaluate(MODEL, PARAMS, batch))
    assert distance.isfinite().all()
    assert float(distance[batch.species == 1].min()) > float(distance[batch.species == 0].max())


def test_a_network_without_features_is_refused() -> None:
    model = Race(replace(small_spec(ELEMENTS, noise=NO_NOISE), activation="relu"))
    params: Params = model.init(0, dtype=torch.float64)
    data = dataset(labelled(None, frames(4)))
    with pytest.raises(ValueError, match="posterior: point"):
        fit(model, params, data, data, options=OPTIONS, lambdas=ONES)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_noise_heads_keep_what_the_errors_say_of_them(share: float) -> None:
    """Errors that follow the distance alone, or the noise of the heads alone."""
    joint = NoiseSpec("joint", "extensive", "equivariant", stress=False)
    model = Race(small_spec(ELEMENTS, noise=joint))
    params = model.init(0, dtype=torch.float64)
    train, chosen = frames(60), frames(200, start=100)

    def fitted(valid: list[Frame]) -> Distance:
        return fit(model, params, dataset(train), dataset(valid), options=OPTIONS, lambdas=ONES)

    truth = fitted(labelled(None, frames(20, start=900), model=model, params=params))
    if share == 0:
        found = fitted(labelled(truth, chosen, model=model, params=params))
        assert truth.forces_scale is not None
        assert found.forces_scale is not None
        torch.testing.assert_close(found.forces_scale, truth.forces_scale, rtol=0.2, atol=0)
        assert found.noise["forces"] < 0.05
        return
    found = fitted([noisy(frame, model, params) for frame in chosen])
    assert found.noise["forces"] == pytest.approx(1.0, rel=0.15)


def noisy(frame: Frame, model: Race, params: Params) -> Frame:
    """Labels with the noise that the heads predict."""
    batch = graph_of(model, frame)
    outputs = evaluate(model, params, batch)
    own = noise(outputs, batch, model.noise_spec, ONES)
    assert own.energy is not None
    assert own.forces is not None
    random = torch.Generator().manual_seed(frame.index)
    root = torch.linalg.cholesky(own.forces)
    normal = torch.randn(*outputs.forces.shape, 1, generator=random, dtype=torch.float64)
    forces = outputs.forces + (root @ normal).squeeze(-1)
    return replace(
        frame,
        energy=float(outputs.energy) + float(own.energy.sqrt()) * float(normal[0, 0, 0]),
        forces=forces[batch.file_order].numpy(),
    )


def test_predictions_have_what_is_left_of_the_noise(make_potential: Callable[..., Any]) -> None:
    """Half of the variance of energies, twice that of stresses, and nothing of the forces'."""
    point = make_potential(elements=ELEMENTS)
    made = DistanceOptions.examples()["distance"](point.model, point.posterior.params)
    left = {"energy": 0.5, "forces": 0.0, "stress": 2.0}
    scaled = replace(point, posterior=replace(made, noise=left))
    chosen = frames(2, cell=CELL)
    found, bare = (each.predict(chosen, stress=True) for each in (scaled, point))
    for name, factor in left.items():
        own, whole = getattr(found, name).aleatoric, getattr(bare, name).aleatoric
        assert bool((whole != 0).any())
        torch.testing.assert_close(own, factor * whole, rtol=1e-12, atol=0)
