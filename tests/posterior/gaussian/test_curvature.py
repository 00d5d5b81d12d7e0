"""Diagonals of JᵀΛJ against Jacobians written out, and the estimate by random signs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Params
from bayrace.core.protocols import NoisyModel
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.models.derivatives import evaluate, jacobian
from bayrace.models.noise import NO_NOISE, Lambdas, NoiseSpec, noise
from bayrace.models.pair import PairModel
from bayrace.models.race.network import Race
from bayrace.posterior.gaussian.curvature import (
    Probes,
    diagonal_ggn,
    last_layer_ggn,
    leaves_of,
    noise_slopes,
    sum_of_squares,
)
from bayrace.posterior.gaussian.diagonal import Diagonal
from bayrace.posterior.gaussian.observed import label_sums
from bayrace.testing import random_frame, small_spec

ELEMENTS = (1, 6, 8)
LAMBDAS = Lambdas(energy=2.0, forces=3.0, stress=5.0)
JOINT = NoiseSpec("joint", "extensive", "equivariant", stress=True)
ENERGY = NoiseSpec("energy", "mean_log", "equivariant", stress=False)


def labelled(seed: int, *, atoms: int = 5, periodic: bool = False, **changes: Any) -> Frame:
    cell = np.eye(3) * 4.2 if periodic else None
    frame = random_frame(ELEMENTS, atoms, seed=seed, cell=cell, apart=1.0)
    random = np.random.default_rng(seed)
    values = {
        "energy": float(random.normal()),
        "forces": random.normal(size=(atoms, 3)),
        "stress": random.normal(size=6) if periodic else None,
    }
    return replace(frame, **(values | changes))


def dataset(model: NoisyModel, frames: list[Frame]) -> Dataset:
    references = dict.fromkeys(ELEMENTS, 0.0)
    return Dataset(frames, elements=ELEMENTS, cutoff=model.cutoff, references=references)


def one_by_one(data: Dataset) -> list[tuple[GraphBatch, Labels]]:
    return [data.batch([index], dtype=torch.float64) for index in range(len(data))]


def explicit(
    model: NoisyModel, params: Params, batch: GraphBatch, labels: Labels
) -> dict[str, Params]:
    """Σ_rc J_rp Λ_rc J_cp from torch.func.jacrev and the inverse covariance, over known labels."""

    def outputs(values: Params) -> dict[str, torch.Tensor]:
        found = evaluate(model, values, batch, stress=True)
        assert found.stress is not None
        return {"energy": found.energy[:, None], "forces": found.forces, "stress": found.stress}

    jacobians = torch.func.jacrev(outputs)(params)
    plain = evaluate(model, params, batch, stress=True)
    spread = noise(plain, batch, model.noise_spec, LAMBDAS)
    known = {"energy": labels.energy[:, None], "forces": labels.forces, "stress": labels.stress}
    weight = {"energy": labels.weight, "forces": labels.weight[batch.structure_index]}
    result: dict[str, Params] = {}
    for quantity, rows in jacobians.items():
        size = known[quantity].shape[1]
        there = ~known[quantity].isnan().any(1)
        covariance = getattr(spread, quantity)
        if covariance is None:
            unit = torch.eye(size, dtype=torch.float64)
            unit[3:, 3:] *= 0.5  # shear components, so that the noise has no direction
            covariance = unit.expand(len(there), size, size)
        precision = torch.linalg.inv(covariance.reshape(-1, size, size)[there])
        precision = precision * weight.get(quantity, labels.weight)[there, None, None]
        result[quantity] = {
            name: torch.einsum("nip,nij,njp->p", row, precision, row).reshape(params[name].shape)
            for name, full in rows.items()
            for row in [full[there].flatten(2)]
        }
    return result


def assert_equal(found: Params, expected: Params, tolerance: float = 1e-6) -> None:
    """Relative to each value, but for those that are rounding beside the largest."""
    scale = max(float(value.max()) for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=1e-14 * scale)


@pytest.mark.parametrize("spec", [NO_NOISE, ENERGY, JOINT], ids=["mse", "nll_e", "nll_jef"])
@pytest.mark.parametrize("knots", [0, 32])
def test_diagonal_equals_the_explicit_jacobian(spec: NoiseSpec, knots: int) -> None:
    changes = {"noise": spec, "radial_knots": knots, "self_contraction": True, "gate": True}
    model = Race(small_spec(ELEMENTS, **changes))
    params = model.init(0, dtype=torch.float64)
    data = dataset(model, [labelled(0, periodic=True), labelled(1, weight=2.5)])
    batches = one_by_one(data)
    with torch.no_grad():  # wherever it is called
        found = diagonal_ggn(model, params, batches, lambdas=LAMBDAS, probes=None, stress=True)
    parts = [explicit(model, params, *pair) for pair in batches]
    for quantity in ("energy", "forces", "stress"):
        expected = {name: sum(p[quantity][name] for p in parts) for name in params}
        assert max(float(v.max()) for v in expected.values()) > 0
        assert_equal(found[quantity], expected)
    # one batch of both: rows of different structures are different rows
    joined = [data.batch([0, 1], dtype=torch.float64)]
    together = diagonal_ggn(model, params, joined, lambdas=LAMBDAS, probes=None, stress=True)
    assert_equal(together["forces"], found["forces"], 1e-9)


def test_random_signs_give_the_diagonal_within_their_error() -> None:
    """One probe has the variance 2 [(Σ_r J_r²)² - Σ_r J_r⁴]; the mean of K an error √K smaller."""
    model = Race(small_spec(ELEMENTS))
    params = model.init(0, dtype=torch.float64)
    batch, _ = one_by_one(dataset(model, [labelled(2)]))[0]
    leaves = leaves_of(params)
    values = evaluate(model, leaves, batch).forces.flatten()
    rows = {name: [] for name in params}
    for chunk in jacobian(values, leaves, torch.eye(len(values))):
        for name, row in chunk.items():
            rows[name].append(row)
    repeats, probes = 60, 10  # fewer than the 15 rows
    signs = torch.Generator().manual_seed(1)
    drawn = [sum_of_squares(values, leaves, probes=probes, signs=signs) for _ in range(repeats)]
    away = []
    for name, parts in rows.items():
        square = torch.cat(parts).square()
        exact = square.sum(0)
        variance = 2 * (exact.square() - square.square().sum(0)) / probes
        mean = torch.stack([one[name] for one in drawn]).mean(0)
        moved = exact > 1e-12 * max(float(v.abs().max()) for v in parts) ** 2
        away.append(((mean - exact) / (variance / repeats).sqrt())[moved].flatten())
        assert not mean[exact == 0].any()
    scores = torch.cat(away)
    assert len(scores) > 500
    assert float(scores.abs().max()) < 5
    assert float(scores.square().mean().sqrt()) < 1.6  # weights are correlated, so not quite 1


def test_all_signs_together_give_the_diagonal() -> None:
    model = PairModel(elements=ELEMENTS, cutoff=4.0, functions=4)
    params = model.init(0, dtype=torch.float64)
    batch, _ = one_by_one(dataset(model, [labelled(8, atoms=3)]))[0]
    leaves = leaves_of(params)
    values = evaluate(model, leaves, batch).forces.flatten()
    every = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=9)))
    squares = [row["weights"].square() for row in jacobian(values, leaves, every)]
    exact = sum_of_squares(values, leaves, probes=None, signs=torch.Generator())
    torch.testing.assert_close(torch.cat(squares).mean(0), exact["weights"])


def test_enough_probes_are_exact_and_seeds_repeat() -> None:
    model = PairModel(elements=ELEMENTS, cutoff=4.0, functions=4)
    params = model.init(0, dtype=torch.float64)
    batches = one_by_one(dataset(model, [labelled(3), labelled(4)]))

    def run(probes: int | None, seed: int = 0) -> torch.Tensor:
        signs = None if probes is None else Probes(probes, seed)
        found = diagonal_ggn(model, params, batches, lambdas=LAMBDAS, probes=signs)
        return found["forces"]["weights"]

    assert torch.equal(run(15), run(None))
    assert torch.equal(run(3), run(3))
    assert not torch.equal(run(3), run(3, seed=1))


@pytest.mark.parametrize("knots", [0, 32])
def test_a_lone_atom_has_an_energy_but_no_forces(knots: int) -> None:
    lone = labelled(9, atoms=1)
    race = Race(small_spec(ELEMENTS, noise=NO_NOISE, radial_knots=knots))
    for model in (PairModel(elements=ELEMENTS, cutoff=4.0, functions=4), race):
        params = model.init(0, dtype=torch.float64)
        batches = one_by_one(dataset(model, [lone]))
        found = diagonal_ggn(model, params, batches, lambdas=LAMBDAS, probes=None)
        assert not any(value.any() for value in found["forces"].values())
        assert any(value.any() for value in found["energy"].values()) == (model is race)
        spread = Diagonal(params, params).spread(model, batches[0][0], forces=True, stress=False)
        assert spread.forces is not None
        assert torch.equal(spread.forces, torch.zeros(1, 3, 3).double())


def test_missing_labels_and_weights() -> None:
    model = PairModel(elements=ELEMENTS, cutoff=4.0, functions=4)
    params = model.init(0, dtype=torch.float64)
    hidden = labelled(5).forces
    assert hidden is not None
    hidden[2] = np.nan
    frames = [labelled(5, energy=None, forces=hidden), labelled(6, forces=None, weight=3.0)]
    seen: list[int] = []
    batches = one_by_one(dataset(model, frames))
    found = diagonal_ggn(model, params, batches, lambdas=LAMBDAS, probes=None, progress=seen.append)
    assert seen == [1, 2]
    only = model.features(batches[1][0]).sum(0)
    torch.testing.assert_close(found["energy"]["weights"], 3 * only.square())
    leaves = leaves_of(params)
    forces = evaluate(model, leaves, batches[0][0]).forces
    kept = batches[0][1].forces.isfinite().all(1)
    assert kept.sum() == 4
    rows = torch.cat(
        [r["weights"] for r in jacobian(forces[kept].flatten(), leaves, torch.eye(12))]
    )
    torch.testing.assert_close(found["forces"]["weights"], rows.square().sum(0))
    sums = label_sums(model, params, batches, lambdas=LAMBDAS, stress=True)
    assert sums.keys() == {"energy", "forces"}
    assert sums["energy"].components == 3
    assert sums["forces"].components == 12
    error = float(batches[1][1].energy - (only * params["weights"]).sum())
    assert sums["energy"].squares == pytest.approx(3 * error**2)


@pytest.mark.parametrize("spec", [NO_NOISE, JOINT], ids=["mse", "nll_jef"])
def test_last_layer_has_the_same_diagonal(spec: NoiseSpec) -> None:
    model = Race(small_spec(ELEMENTS, noise=spec))
    params = model.init(0, dtype=torch.float64)
    data = dataset(model, [labelled(0, periodic=True), labelled(1), labelled(7, weight=0.5)])
    options = {"lambdas": LAMBDAS, "stress": True}
    diagonal = diagonal_ggn(model, params, one_by_one(data), probes=None, **options)
    both = [data.batch([0, 1], dtype=torch.float64), data.batch([2], dtype=torch.float64)]
    full = last_layer_ggn(model, params, both, **options)
    for quantity in ("energy", "forces", "stress"):
        expected = model.last_layer(diagonal[quantity])
        torch.testing.assert_close(full[quantity].diagonal(), expected, rtol=1e-9, atol=1e-12)
        assert float((full[quantity] - full[quantity].T).abs().max()) < 1e-9
        assert float(torch.linalg.eigvalsh(full[quantity]).min()) > -1e-9


def test_sums_of_a_noisy_model_are_its_likelihood() -> None:
    model = PairModel(ELEMENTS, 4.0, 4, NoiseSpec("joint", "extensive", "equivariant", False))
    params = model.init(0, dtype=torch.float64)
    params["energy_noise"] = torch.tensor(0.7).double()
    params["forces_noise"] = torch.tensor(-0.4).double()
    batch, labels = one_by_one(dataset(model, [labelled(1)]))[0]
    sums = label_sums(model, params, [(batch, labels)], lambdas=LAMBDAS)
    outputs = evaluate(model, params, batch)
    spread = noise(outputs, batch, model.noise_spec, LAMBDAS)
    for name, one in sums.items():
        prediction, label = getattr(outputs, name).flatten(), getattr(labels, name).flatten()
        covariance = torch.block_diag(*getattr(spread, name))
        exact = torch.distributions.MultivariateNormal(prediction, covariance).log_prob(label)
        constant = one.components * np.log(2 * np.pi)
        assert one.own
        assert -0.5 * (one.squares + one.log_volume + constant) == pytest.approx(float(exact))


def test_noise_slopes_tell_the_heads_from_the_rest() -> None:
    model = Race(small_spec(ELEMENTS))
    params = model.init(0, dtype=torch.float64)
    batch, _ = one_by_one(dataset(model, [labelled(0)]))[0]
    slopes = noise_slopes(model, params, [batch])
    energy_only = slopes["layer2.readout.scalars"][:, 0]
    assert not energy_only.any()
    assert (slopes["layer2.readout.scalars"][:, 1:] > 0).all()
    quiet = Race(small_spec(ELEMENTS, noise=NO_NOISE))
    params = quiet.init(0, dtype=torch.float64)
    assert not any(v.any() for v in noise_slopes(quiet, params, [batch]).values())


def test_linearised_spread_equals_the_explicit_jacobian() -> None:
    model = Race(small_spec(ELEMENTS, noise=NO_NOISE))
    params = model.init(0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    std = {k: torch.rand(v.shape, generator=generator).double() for k, v in params.items()}
    data = dataset(model, [labelled(0, periodic=True), labelled(1, atoms=8), labelled(2)])
    batch, _ = data.batch([0, 1, 2], dtype=torch.float64)

    def outputs(values: Params) -> dict[str, torch.Tensor]:
        found = evaluate(model, values, batch, stress=True)
        assert found.stress is not None
        return {"energy": found.energy[:, None], "forces": found.forces, "stress": found.stress[:1]}

    with torch.no_grad():  # as predictions call it
        spread = Diagonal(params, std).spread(model, batch, forces=True, stress=True)
    jacobians = torch.func.jacrev(outputs)(params)
    expected = {
        quantity: sum(
            (row * std[n]).flatten(2) @ (row * std[n]).flatten(2).mT for n, row in rows.items()
        )
        for quantity, rows in jacobians.items()
    }
    torch.testing.assert_close(spread.energy, expected["energy"][:, 0, 0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(spread.forces, expected["forces"], rtol=1e-9, atol=1e-12)
    assert spread.stress is not None
    torch.testing.assert_close(spread.stress[:1], expected["stress"], rtol=1e-9, atol=1e-12)
    assert spread.stress[1:].isnan().all()
    quick = Diagonal(params, std).spread(model, batch, forces=False, stress=False)
    torch.testing.assert_close(quick.energy, spread.energy)
    assert quick.forces is None
    assert quick.stress is None
