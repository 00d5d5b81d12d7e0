"""LLPR against Bayesian linear regression, whose posterior is known exactly."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.core.protocols import ClosedForm
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, NoiseSpec
from bayrace.models.pair import PairModel
from bayrace.models.race.network import Race
from bayrace.posterior.gaussian.last_layer import (
    _coordinate_passes,
    feature_derivatives,
    last_layer_places,
    projected_derivatives,
    structure_features,
)
from bayrace.posterior.gaussian.rows import energy_rows, forces_gram, forces_rows
from bayrace.posterior.llpr import Llpr, LlprOptions, fit
from bayrace.testing import graph_of, random_frame, small_spec

ELEMENTS = (1, 8)
PAIR = PairModel(elements=ELEMENTS, cutoff=4.0, functions=4)
EXACT = LlprOptions(regularisation=None, force_samples=0, force_rows=None)
ONES = Lambdas(1.0, 1.0, 1.0)


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
    return (
        fit(PAIR, params, dataset(train), dataset(valid), options=options, lambdas=ONES),
        params,
        features,
    )


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
            options=replace(EXACT, regularisation=1e-3),
            lambdas=ONES,
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
        given = replace(EXACT, regularisation=chosen.regularisation * factor)
        other = fit(PAIR, params, dataset(train), dataset(valid), options=given, lambdas=ONES)
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
    few = replace(EXACT, force_samples=10, regularisation=exact.regularisation)
    train, valid = dataset(labelled(40)), dataset(labelled(30, start=100))
    sums = torch.zeros_like(whole.forces)
    for seed in range(200):
        rough = fit(PAIR, params, train, valid, options=few, lambdas=ONES, seed=seed)
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
    assert outputs.last_features is not None
    shift = torch.tensor(model.spec.shift, dtype=torch.float64)[batch.species]
    torch.testing.assert_close(outputs.last_features @ weights + shift, outputs.atomic_energy)
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
    posterior, _, _ = fitted(replace(EXACT, force_samples=3))
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
        fit(PAIR, PAIR.init(0), dataset(labelled(5)), dataset(bare), options=EXACT, lambdas=ONES)


NOISY = replace(PAIR, noise_spec=NoiseSpec("joint", "extensive", "equivariant", stress=False))
ENERGY_STD, FORCES_STD = 0.05, 0.2  # eV by √atom, eV/Å


def noisy_truth() -> dict[str, torch.Tensor]:
    """Weights and noise from which the frames of `noisy` come."""
    heads = {"energy_noise": 2 * math.log(ENERGY_STD), "forces_noise": 2 * math.log(FORCES_STD)}
    real = {name: torch.tensor(value, dtype=torch.float64) for name, value in heads.items()}
    return PAIR.init(99, dtype=torch.float64) | real


def noisy(count: int, *, start: int) -> list[Frame]:
    """3 to 10 atoms, whose energies have variances in proportion, with forces.

    The scatter has exactly the variance it stands for, so that few frames tell much.
    """
    truth, random = noisy_truth(), np.random.default_rng(start)
    drawn = random.normal(size=(count, 1 + 30))
    drawn /= np.sqrt(np.mean(drawn**2, axis=0))
    frames = []
    for seed, row in zip(range(start, start + count), drawn, strict=True):
        atoms = 3 + seed % 8
        frame = random_frame(ELEMENTS, atoms, seed=seed, apart=1.2)
        batch = graph_of(NOISY, frame)
        outputs = evaluate(NOISY, truth, batch)
        energy = float(outputs.energy[0]) + ENERGY_STD * atoms**0.5 * row[0]
        scatter = FORCES_STD * row[1 : 1 + 3 * atoms].reshape(atoms, 3)
        forces = outputs.forces[batch.file_order].numpy() + scatter
        frames.append(replace(frame, energy=energy, forces=forces))
    return frames


@pytest.mark.parametrize("rows", [0, None])
def test_the_total_variance_of_heteroscedastic_noise_is_recovered(rows: int | None) -> None:
    """Averaged over training noise, within 5 %, of energies and forces, small and large.

    A fit by (weighted) least squares has errors of known covariance, of which weights are drawn;
    LLPR itself reads no training label.
    """
    train, test = noisy(60, start=0), noisy(100, start=5000)
    known, held = dataset(train, NOISY), dataset(noisy(300, start=1000), NOISY)
    truth = noisy_truth()
    batch = graph_of(NOISY, *train)
    energies = structure_features(batch, NOISY.features(batch).flatten(1))
    slopes = feature_derivatives(NOISY, truth, batch).forces.flatten(1).T
    noise = batch.atom_counts() * ENERGY_STD**2
    weight = 0.0 if rows == 0 else float(noise.mean()) / FORCES_STD**2
    inverse = torch.linalg.inv(energies.T @ energies + weight * slopes.T @ slopes)
    scatter = energies.T @ (noise[:, None] * energies)
    scatter += weight**2 * FORCES_STD**2 * slopes.T @ slopes
    covariance = inverse @ scatter @ inverse
    draws = torch.distributions.MultivariateNormal(NOISY.last_layer(truth), covariance)
    batch = graph_of(NOISY, *test)
    features = structure_features(batch, NOISY.features(batch).flatten(1))
    steps = feature_derivatives(NOISY, truth, batch).forces
    large, share = batch.atom_counts() > 6, batch.atom_counts() * ENERGY_STD**2
    exact_energy = share + torch.einsum("sd,de,se->s", features, covariance, features)
    exact_forces = FORCES_STD**2 + torch.einsum("dni,de,eni->ni", steps, covariance, steps)
    energy, forces = torch.zeros_like(exact_energy), torch.zeros_like(exact_forces)
    torch.manual_seed(0)
    repeats = 20
    for weights in draws.sample((repeats,)):
        params = NOISY.with_last_layer(truth, weights)
        found = fit(
            NOISY, params, known, held, options=replace(EXACT, force_rows=rows), lambdas=ONES
        )
        outputs = evaluate(NOISY, params, batch)
        spread = found.spread(NOISY, params, batch, outputs, forces=True, stress=False)
        assert spread.forces is not None
        energy += (share + spread.energy) / repeats
        forces += (FORCES_STD**2 + spread.forces.diagonal(dim1=1, dim2=2)) / repeats
    for which in (large, ~large):
        assert float(energy[which].mean() / exact_energy[which].mean()) == pytest.approx(
            1, abs=0.05
        )
    assert float(forces.mean() / exact_forces.mean()) == pytest.approx(1, abs=0.05)
    epistemic = float((exact_energy / share).mean())
    assert epistemic > (1.2 if rows == 0 else 1.0)  # so that the noise alone would not do


def test_forces_join_by_their_noise() -> None:
    """C = Σ φφᵀ + w Σ ∂φ ∂φᵀ + ςI, w by the medians of the validation errors."""
    train, valid = noisy(20, start=0), noisy(30, start=1000)
    params = noisy_truth()
    given = replace(EXACT, regularisation=1e-3)
    found = fit(NOISY, params, dataset(train), dataset(valid), options=given, lambdas=ONES)
    energies = energy_rows(NOISY, params, dataset(valid, NOISY), lambdas=ONES).error
    forces = forces_rows(
        NOISY, params, dataset(valid, NOISY), lambdas=ONES, count=2000, seed=1
    ).error
    weight = float(energies.abs().median() / forces.abs().median()) ** 2
    batch = graph_of(NOISY, *train)
    rows = structure_features(batch, NOISY.features(batch).flatten(1))
    slopes = feature_derivatives(NOISY, params, batch).forces.flatten(1).T
    gram = rows.T @ rows + weight * slopes.T @ slopes
    level = 1e-3 * torch.linalg.eigvalsh(gram).mean()
    exact = torch.linalg.inv(gram + level * torch.eye(len(gram), dtype=torch.float64))
    covariance = found.last.factor @ found.last.factor.T / found.alpha**2
    assert (covariance - exact).abs().max() / exact.abs().max() < 1e-8
    alone = replace(given, force_rows=0)
    without = fit(NOISY, params, dataset(train), dataset(valid), options=alone, lambdas=ONES)
    wider = without.last.factor @ without.last.factor.T / without.alpha**2
    assert float(wider.trace()) > 2 * float(exact.trace())


@pytest.mark.parametrize("rows", [6, 24])
def test_random_sums_of_forces_are_unbiased(rows: int) -> None:
    """Of some of the frames, or of each twice; atoms without a label do not count."""
    frames = noisy(12, start=0)
    forces = np.array(frames[5].forces)
    forces[1] = np.nan
    data = dataset([*frames[:5], replace(frames[5], forces=forces), *frames[6:]], NOISY)
    params = noisy_truth()
    exact = forces_gram(NOISY, params, data, rows=None, seed=0)
    full = forces_gram(NOISY, params, dataset(frames, NOISY), rows=None, seed=0)
    assert (full - exact).abs().max() / full.abs().max() > 1e-3
    draws = torch.stack(
        [forces_gram(NOISY, params, data, rows=rows, seed=seed) for seed in range(300)]
    )
    error = (draws.mean(0) - exact) / (draws.std(0) / 300**0.5)
    assert error.abs().max() < 4.5  # standard errors, of 78 numbers
    again = forces_gram(NOISY, params, data, rows=rows, seed=7)
    assert torch.equal(again, draws[7])


def test_as_many_rows_as_forces_are_the_forces_themselves() -> None:
    frames = noisy(3, start=0)
    data, params = dataset(frames, NOISY), noisy_truth()
    components = 3 * max(len(frame.numbers) for frame in frames)
    exact = forces_gram(NOISY, params, data, rows=None, seed=0)
    torch.testing.assert_close(
        forces_gram(NOISY, params, data, rows=3 * components, seed=1), exact, rtol=1e-12, atol=0
    )
    fewer = forces_gram(NOISY, params, data, rows=3 * (components - 1), seed=1)
    assert (fewer - exact).abs().max() / exact.abs().max() > 1e-3


@pytest.mark.parametrize("sizes", [(2, 3, 1), (12, 3, 1)])  # fewer coordinates than features; more
def test_derivatives_by_coordinates_or_features_are_those_of_any_weights(
    sizes: tuple[int, ...],
) -> None:
    """F = (-∂φ/∂x) · w whatever w is, for structures of several sizes, one without a stress."""
    model = Race(small_spec(ELEMENTS, readout_hidden=16))
    params = model.init(3, dtype=torch.float64)
    frames = [random_frame(ELEMENTS, n, seed=n, cell=np.eye(3) * 5.0) for n in sizes[:2]]
    frames.append(random_frame(ELEMENTS, sizes[2], seed=9))
    batch = graph_of(model, *frames)
    width = model.last_layer(params).numel()
    assert (_coordinate_passes(batch, stress=True) < width) == (max(sizes) < 12)
    random = torch.Generator().manual_seed(0)
    factor = torch.randn(width, width, generator=random, dtype=torch.float64)
    slopes = feature_derivatives(model, params, batch, stress=True)
    turned = feature_derivatives(model, params, batch, factor=factor, stress=True)
    assert slopes.stress is not None
    assert turned.stress is not None
    assert slopes.stress[:, 2].isnan().all()
    for k in range(3):
        changed = model.with_last_layer(params, factor[:, k])
        outputs = evaluate(model, changed, batch, stress=True)
        forces = torch.einsum("dni,d->ni", slopes.forces, factor[:, k])
        torch.testing.assert_close(forces, outputs.forces)
        torch.testing.assert_close(turned.forces[k], outputs.forces)
        stress = torch.einsum("dsi,d->si", slopes.stress, factor[:, k])
        torch.testing.assert_close(stress, outputs.stress, equal_nan=True)
        torch.testing.assert_close(turned.stress[k], outputs.stress, equal_nan=True)


@pytest.mark.parametrize("count", [3, 40])  # fewer and more than there are features
def test_derivatives_along_directions_are_those_of_the_features(count: int) -> None:
    model = Race(small_spec(ELEMENTS))
    params = model.init(3, dtype=torch.float64)
    assert 3 < model.last_layer(params).numel() <= 40
    frames = [random_frame(ELEMENTS, n, seed=n, cell=np.eye(3) * 4.0) for n in (4, 5)]
    batch = graph_of(model, *frames)
    slopes = feature_derivatives(model, params, batch, stress=True)
    assert slopes.stress is not None
    random = torch.Generator().manual_seed(0)
    along = torch.randn(count, batch.n_atoms, 3, generator=random, dtype=torch.float64)
    each = torch.einsum("kni,dni->knd", along, slopes.forces)
    expected = torch.zeros(count, 2, each.shape[-1], dtype=torch.float64)
    expected.index_add_(1, batch.structure_index, each)
    torch.testing.assert_close(projected_derivatives(model, params, batch, along), expected)
    along = torch.randn(count, 2, 6, generator=random, dtype=torch.float64)
    found = projected_derivatives(model, params, batch, along, stress=True)
    torch.testing.assert_close(found, torch.einsum("ksi,dsi->ksd", along, slopes.stress))


def test_stress_is_modelled_only_where_labels_have_scaled_it() -> None:
    """Its σ then explains the errors that it was scaled by."""
    truth, random = PAIR.init(99, dtype=torch.float64), np.random.default_rng(0)
    frames = []
    for seed in range(30):
        frame = random_frame(ELEMENTS, 5, seed=seed, apart=1.2, cell=np.eye(3) * 4.5)
        outputs = evaluate(PAIR, truth, graph_of(PAIR, frame), stress=True)
        assert outputs.stress is not None
        stress = outputs.stress[0].numpy() + 0.01 * random.normal(size=6)
        energy = float(outputs.energy[0]) + 0.05 * random.normal()
        frames.append(replace(frame, energy=energy, stress=stress))
    bare = [replace(frame, stress=None) for frame in frames]
    batch = graph_of(PAIR, *frames)
    outputs = evaluate(PAIR, truth, batch, stress=True)
    found = fit(PAIR, truth, dataset(frames), dataset(frames), options=EXACT, lambdas=ONES)
    spread = found.spread(PAIR, truth, batch, outputs, forces=False, stress=True)
    assert spread.stress is not None
    labels = torch.tensor(np.array([frame.stress for frame in frames]))
    variance = spread.stress.diagonal(dim1=1, dim2=2)
    z = (outputs.stress - labels).square() / variance
    assert float(z.mean()) == pytest.approx(1.0, rel=1e-6)
    silent = fit(PAIR, truth, dataset(frames), dataset(bare), options=EXACT, lambdas=ONES)
    assert silent.alpha_stress is None
    assert silent.spread(PAIR, truth, batch, outputs, forces=False, stress=True).stress is None


def test_files_from_before_there_were_several_scales_can_be_read() -> None:
    posterior, params, _ = fitted()
    old = Llpr.restore(posterior.tensors(), {"alpha": 0.5, "regularisation": 1e-6})
    assert (old.alpha, old.alpha_forces, old.alpha_stress) == (0.5, 0.5, None)
    batch = graph_of(PAIR, *labelled(2, start=500))
    outputs = evaluate(PAIR, params, batch)
    spread = old.spread(PAIR, params, batch, outputs, forces=True, stress=False)
    expected = posterior.last.spread(PAIR, params, batch, outputs, forces=True, stress=False)
    assert torch.equal(spread.forces, expected.forces)


def test_an_edge_of_the_regularisation_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Weights that were never fitted err as |φ| does, whatever the training structures."""
    with caplog.at_level(logging.WARNING, "bayrace.posterior.llpr"):
        params = fitted()[1]
        assert not caplog.records
        params = PAIR.init(0, dtype=torch.float64)
        train, valid = dataset(labelled(40)), dataset(labelled(30, start=100))
        fit(PAIR, params, train, valid, options=EXACT, lambdas=ONES)
    assert "is at the edge of its range" in caplog.text
