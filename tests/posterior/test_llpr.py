"""LLPR against Bayesian linear regression, whose posterior is known exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.data.cache import Dataset
from bayrace.data.frame import Frame
from bayrace.model.derivatives import evaluate
from bayrace.model.last_layer import feature_derivatives, last_layer_places, structure_features
from bayrace.model.pair import PairModel
from bayrace.model.race import Race
from bayrace.posterior.llpr import Llpr, LlprOptions, fit
from bayrace.testing import graph_of, random_frame, small_spec
from bayrace.types import ClosedForm

ELEMENTS = (1, 8)
PAIR = PairModel(elements=ELEMENTS, cutoff=4.0, functions=4)
EXACT = LlprOptions(regularisation=None, force_samples=0)


def labelled(count: int, *, start: int = 0, noise: float = 0.05) -> list[Frame]:
    """Structures whose energies are those of known weights, with Gaussian noise on top."""
    truth = PAIR.init(99, dtype=torch.float64)
    random = np.random.default_rng(start)
    frames = []
    for seed in range(start, start + count):
        frame = random_frame(ELEMENTS, 6, seed=seed, apart=1.2)
        energy = float(PAIR.energy(truth, graph_of(PAIR, frame)).energy[0])
        frames.append(replace(frame, energy=energy + noise * random.normal()))
    return frames


def dataset(frames: list[Frame], model: PairModel | Race = PAIR) -> Dataset:
    return Dataset(
        frames,
        elements=model.elements,
        cutoff=model.cutoff,
        references=dict.fromkeys(model.elements, 0.0),
    )


def fitted(options: LlprOptions = EXACT) -> tuple[Llpr, dict[str, torch.Tensor], torch.Tensor]:
    """LLPR around the least-squares weights, those weights, and the training features."""
    train, valid = labelled(40), labelled(30, start=100)
    features = torch.cat(
        [PAIR.features(graph_of(PAIR, frame)).flatten(1).sum(0, keepdim=True) for frame in train]
    )
    energies = torch.tensor([frame.energy for frame in train], dtype=torch.float64)
    weights = torch.linalg.lstsq(features, energies.unsqueeze(-1)).solution.squeeze(-1)
    params = PAIR.with_last_layer(PAIR.init(0, dtype=torch.float64), weights)
    return fit(PAIR, params, dataset(train), dataset(valid), options=options), params, features


def test_is_the_exact_posterior_of_a_linear_model() -> None:
    posterior, params, features = fitted()
    noise = posterior.alpha**2
    gram = features.T @ features
    prior = noise / (posterior.regularisation * torch.linalg.eigvalsh(gram).mean())
    exact = torch.linalg.inv(gram / noise + torch.eye(len(gram), dtype=torch.float64) / prior)
    found = posterior.last.factor @ posterior.last.factor.T
    assert (found - exact).abs().max() / exact.abs().max() < 1e-6
    batch = graph_of(PAIR, *labelled(3, start=500))
    outputs = evaluate(PAIR, params, batch)
    spread = posterior.spread(PAIR, params, batch, outputs, forces=True, stress=False)
    rows = structure_features(batch, PAIR.features(batch).flatten(1))
    energy = torch.einsum("sd,de,se->s", rows, exact, rows)
    torch.testing.assert_close(spread.energy, energy, rtol=1e-6, atol=0)
    slopes = torch.func.jacrev(  # forces are linear in the weights
        lambda w: evaluate(PAIR, PAIR.with_last_layer(params, w), batch).forces
    )(PAIR.last_layer(params))
    forces = torch.einsum("nid,de,nje->nij", slopes, exact, slopes)
    assert spread.forces is not None
    assert (spread.forces - forces).abs().max() / forces.abs().max() < 1e-6


def test_the_scale_is_that_of_the_errors() -> None:
    """Errors of a model that is right come from its noise, so σ grows with it, one to one."""
    quiet, loud = (
        fit(
            PAIR,
            PAIR.init(99, dtype=torch.float64),
            dataset(labelled(40)),
            dataset(labelled(200, start=100, noise=noise)),
            options=LlprOptions(regularisation=1e-3, force_samples=0),
        ).alpha
        for noise in (0.01, 0.1)
    )
    assert loud / quiet == pytest.approx(10, rel=1e-6)


def test_regularisation_is_the_most_likely_one() -> None:
    chosen = fitted()[0]
    train, valid = labelled(40), labelled(30, start=100)
    params = chosen.last.params

    def loss(posterior: Llpr) -> float:
        total = 0.0
        for frame in valid:
            batch = graph_of(PAIR, frame)
            outputs = evaluate(PAIR, params, batch)
            variance = posterior.spread(
                PAIR, params, batch, outputs, forces=False, stress=False
            ).energy
            error = outputs.energy[0] - frame.energy
            total += float(variance.log() + error.square() / variance)
        return total

    for factor in (0.1, 10.0):
        given = LlprOptions(chosen.regularisation * factor, force_samples=0)
        other = fit(PAIR, params, dataset(train), dataset(valid), options=given)
        assert loss(chosen) <= loss(other) + 1e-9


def test_samples_have_the_covariance() -> None:
    posterior, params, _ = fitted()
    drawn = posterior.draw(20_000, seed=1)
    weights = torch.stack([PAIR.last_layer({"weights": w}) for w in drawn["weights"]])
    found = torch.cov(weights.T)
    exact = posterior.last.factor @ posterior.last.factor.T
    scale = exact.diagonal().sqrt()
    correlation = (found - exact) / scale[:, None] / scale
    assert correlation.abs().max() < 5 * (2 / 20_000) ** 0.5  # five standard errors
    assert torch.equal(posterior.draw(1, seed=0)["weights"][0], params["weights"])
    assert torch.equal(posterior.draw(3, seed=4)["weights"], posterior.draw(3, seed=4)["weights"])


def test_random_directions_estimate_forces_and_keep_energies() -> None:
    exact = fitted()[0]
    batch = graph_of(PAIR, *labelled(3, start=500))
    params = exact.last.params
    outputs = evaluate(PAIR, params, batch)
    whole = exact.spread(PAIR, params, batch, outputs, forces=True, stress=False)
    few = LlprOptions(regularisation=None, force_samples=10)
    train, valid = dataset(labelled(40)), dataset(labelled(30, start=100))
    sums = torch.zeros_like(whole.forces)
    for seed in range(200):
        rough = fit(PAIR, params, train, valid, options=few, seed=seed)
        spread = rough.spread(PAIR, params, batch, outputs, forces=True, stress=False)
        torch.testing.assert_close(spread.energy, whole.energy)
        sums += spread.forces
    traces = sums.diagonal(dim1=1, dim2=2).sum(-1) / 200
    expected = whole.forces.diagonal(dim1=1, dim2=2).sum(-1)
    # a variance of n squares has the relative error √(2/n); 5 of them, and 3 components help
    assert ((traces - expected) / expected).abs().max() < 5 * (2 / 2000) ** 0.5


def test_network_features_carry_energies_and_forces() -> None:
    """E = φ · w and F = (-∂φ/∂x) · w, exactly, for the network too."""
    model = Race(small_spec(ELEMENTS, shift=(0.3, -0.2)))
    params = model.init(3, dtype=torch.float64)
    frames = [random_frame(ELEMENTS, 5, seed=seed) for seed in (1, 2)]
    frames.append(random_frame(ELEMENTS, 4, seed=5, cell=np.eye(3) * 4.0))
    batch = graph_of(model, *frames)
    outputs = evaluate(model, params, batch, stress=True)
    weights = model.last_layer(params)
    assert outputs.hidden is not None
    shift = torch.tensor(model.spec.shift, dtype=torch.float64)[batch.species]
    torch.testing.assert_close(outputs.hidden @ weights + shift, outputs.atomic_energy)
    slopes = feature_derivatives(model, params, batch, stress=True)
    torch.testing.assert_close(torch.einsum("dni,d->ni", slopes.forces, weights), outputs.forces)
    assert slopes.stress is not None
    torch.testing.assert_close(
        torch.einsum("dsi,d->si", slopes.stress, weights), outputs.stress, equal_nan=True
    )
    flat = torch.cat([params[name].flatten() for name in sorted(params)])
    assert torch.equal(flat[last_layer_places(model, params)], weights)
    changed = model.with_last_layer(params, 2 * weights)
    torch.testing.assert_close(model.last_layer(changed), 2 * weights)


def test_file_and_refusals() -> None:
    posterior, _, _ = fitted(LlprOptions(regularisation=None, force_samples=3))
    again = Llpr.restore(posterior.tensors(), posterior.options())
    assert isinstance(again, ClosedForm)
    for name, value in posterior.tensors().items():
        assert torch.equal(again.tensors()[name], value), name
    assert again.options() == posterior.options()
    single = posterior.to(dtype=torch.float32)
    assert single.last.params["weights"].dtype == torch.float32
    assert single.last.factor.dtype == torch.float64
    model = Race(small_spec(ELEMENTS, activation="relu"))
    with pytest.raises(ValueError, match="activation='relu'"):
        model.last_layer(model.init(0))
    bare = [replace(frame, energy=None) for frame in labelled(3)]
    with pytest.raises(ValueError, match="no validation frame has an energy"):
        fit(PAIR, PAIR.init(0), dataset(labelled(5)), dataset(bare), options=EXACT)
