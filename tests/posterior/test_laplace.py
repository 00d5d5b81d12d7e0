"""Laplace against Bayesian linear regression, whose posterior and evidence are known exactly."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy.stats import multivariate_normal

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances, Params
from bayrace.core.protocols import ClosedForm, Posterior
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.likelihood.evidence import Term, log_evidence, maximise_evidence
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NO_NOISE, Lambdas, NoiseSpec
from bayrace.models.pair import PairModel
from bayrace.models.race.network import Race
from bayrace.posterior.gaussian.diagonal import Diagonal
from bayrace.posterior.gaussian.last_layer import LastLayer
from bayrace.posterior.laplace import Laplace, LaplaceModel, LaplaceOptions, LinearisedLaplace, fit
from bayrace.testing import graph_of, random_frame, small_spec

ELEMENTS = (1, 8)
LAMBDAS = Lambdas(energy=1.0, forces=4.0, stress=1.0)
PAIR = PairModel(elements=ELEMENTS, cutoff=4.0, functions=5)
KINDS = list(itertools.product(("diagonal", "last_layer"), ("glm", "sampled")))
PRIOR, ENERGY_STD, FORCES_STD = 0.3, 0.2, 0.4  # τ, eV, eV/Å


def options(**changes: Any) -> LaplaceOptions:
    values: dict[str, Any] = {
        "structure": "last_layer",
        "predictive": "glm",
        "samples": 16,
        "probes": None,
        "prior_precision": None,
        "noise": "auto",
        "energy_noise": None,
        "forces_noise": None,
    }
    return LaplaceOptions(**(values | changes))


GIVEN = {"prior_precision": PRIOR, "energy_noise": ENERGY_STD, "forces_noise": FORCES_STD}


def noisy_frames(count: int = 12, *, model: LaplaceModel = PAIR) -> list[Frame]:
    """Structures labelled by a model of known weights, with Gaussian noise on top."""
    truth = model.init(99, dtype=torch.float64)
    random = np.random.default_rng(7)
    frames = []
    for seed in range(count):
        frame = random_frame(ELEMENTS, 4, seed=seed, apart=1.0)
        batch = graph_of(model, frame)
        outputs = evaluate(model, truth, batch)
        energy = float(outputs.energy[0]) + random.normal() * ENERGY_STD
        noise = random.normal(size=(4, 3)) * FORCES_STD
        forces = outputs.forces[batch.restore].numpy() + noise
        frames.append(replace(frame, energy=energy, forces=forces))
    return frames


def dataset(frames: list[Frame], model: LaplaceModel = PAIR) -> Dataset:
    references = dict.fromkeys(ELEMENTS, 0.0)
    return Dataset(frames, elements=ELEMENTS, cutoff=model.cutoff, references=references)


def design(batch: GraphBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the linear model: energies (S, P) and force components (3N, P), by torch.func."""

    def outputs(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = evaluate(PAIR, {"weights": weights}, batch)
        return found.energy, found.forces.flatten()

    energy, forces = torch.func.jacrev(outputs)(PAIR.init(0, dtype=torch.float64)["weights"])
    return energy.flatten(1), forces.flatten(1)


class Regression:
    """Bayesian linear regression on the energies and forces of `noisy_frames`."""

    def __init__(self) -> None:
        self.data = dataset(noisy_frames())
        batch, labels = self.data.batch(range(len(self.data)), dtype=torch.float64)
        self.energy, self.forces = design(batch)
        self.rows = torch.cat([self.energy, self.forces])
        self.labels = torch.cat([labels.energy, labels.forces.flatten()])

    def noise(self, energy: float = ENERGY_STD, forces: float = FORCES_STD) -> torch.Tensor:
        sizes = (len(self.energy), len(self.forces))
        variances = torch.tensor([energy, forces], dtype=torch.float64).square()
        return variances.repeat_interleave(torch.tensor(sizes))

    def precision(self) -> torch.Tensor:
        weighted = self.rows / self.noise()[:, None]
        return PRIOR * torch.eye(self.rows.shape[1]).double() + weighted.T @ self.rows

    def best(self, noise: torch.Tensor, prior: float) -> Params:
        weighted = self.rows / noise[:, None]
        identity = torch.eye(self.rows.shape[1]).double()
        weights = torch.linalg.solve(
            prior * identity + weighted.T @ self.rows, weighted.T @ self.labels
        )
        return {"weights": weights.reshape(PAIR.init(0)["weights"].shape)}

    def evidence(self, energy: float, forces: float, prior: float) -> float:
        covariance = self.rows @ self.rows.T / prior + self.noise(energy, forces).diag()
        return float(multivariate_normal.logpdf(self.labels, cov=covariance.numpy()))


@pytest.fixture(scope="module")
def regression() -> Regression:
    return Regression()


@pytest.fixture(scope="module")
def weights(regression: Regression) -> Params:
    return regression.best(regression.noise(), PRIOR)


def pair_fit(data: Dataset, params: Params, **changes: Any) -> Laplace:
    return fit(PAIR, params, data, options=options(**changes), lambdas=LAMBDAS)


def test_last_layer_is_the_exact_posterior(regression: Regression, weights: Params) -> None:
    posterior = pair_fit(regression.data, weights, **GIVEN)
    assert isinstance(posterior.gaussian, LastLayer)
    factor = posterior.gaussian.factor
    exact = torch.linalg.inv(regression.precision())
    torch.testing.assert_close(factor @ factor.T, exact, rtol=1e-6, atol=1e-6 * exact.max())


def test_last_layer_predicts_what_regression_predicts(
    regression: Regression, weights: Params
) -> None:
    posterior = pair_fit(regression.data, weights, **GIVEN)
    frames = [random_frame(ELEMENTS, n, seed=n, apart=0.9) for n in (3, 6)]
    batch = graph_of(PAIR, *frames)
    energy, forces = design(batch)
    exact = torch.linalg.inv(regression.precision())
    spread = spread_of(posterior, PAIR, batch)
    torch.testing.assert_close(
        spread.energy, (energy @ exact @ energy.T).diagonal(), rtol=1e-6, atol=0
    )
    for atom in range(batch.atoms):
        rows = forces[3 * atom : 3 * atom + 3]
        assert spread.forces is not None
        torch.testing.assert_close(spread.forces[atom], rows @ exact @ rows.T, rtol=1e-6, atol=1e-9)


def test_diagonal_is_the_inverse_diagonal_of_the_exact_precision(
    regression: Regression, weights: Params
) -> None:
    posterior = pair_fit(regression.data, weights, structure="diagonal", **GIVEN)
    assert isinstance(posterior.gaussian, Diagonal)
    found = posterior.gaussian.std["weights"].flatten().square()
    torch.testing.assert_close(found, 1 / regression.precision().diagonal(), rtol=1e-6, atol=0)


def test_evidence_is_that_of_the_linear_model(regression: Regression, weights: Params) -> None:
    found = pair_fit(regression.data, weights, **GIVEN).found
    exact = regression.evidence(ENERGY_STD, FORCES_STD, PRIOR)
    assert found["log_evidence"] == pytest.approx(exact, rel=1e-9)
    assert found["energy_noise"] == pytest.approx(ENERGY_STD)


def test_fitting_and_evidence_in_turn_reach_a_maximum_of_the_exact_evidence(
    regression: Regression,
) -> None:
    """The best weights move with the noise; where both agree, the exact evidence is stationary."""
    energy, forces, prior = 1.0, 1.0, 1.0
    for _ in range(60):
        params = regression.best(regression.noise(energy, forces), prior)
        found = pair_fit(regression.data, params).found
        energy, forces, prior = (
            found[name] for name in ("energy_noise", "forces_noise", "prior_precision")
        )
    place = np.log([energy, forces, prior])
    top = regression.evidence(*np.exp(place))
    assert found["log_evidence"] == pytest.approx(top, rel=1e-8)
    step = 1e-3
    for axis in np.eye(3) * step:
        up, down = (regression.evidence(*np.exp(place + sign * axis)) for sign in (1, -1))
        assert abs(up - down) / (2 * step) < 1e-3  # of slopes about 100 elsewhere
        assert max(up, down) < top
    assert energy == pytest.approx(ENERGY_STD, rel=0.5)
    assert forces == pytest.approx(FORCES_STD, rel=0.15)


@pytest.mark.parametrize("structure", ["diagonal", "last_layer"])
def test_found_precisions_are_stationary(
    regression: Regression, weights: Params, structure: str
) -> None:
    batch, labels = regression.data.batch(range(12), dtype=torch.float64)
    outputs = evaluate(PAIR, weights, batch)
    terms = {}
    for name, rows in (("energy", regression.energy), ("forces", regression.forces)):
        gram = rows.T @ rows
        error = (getattr(outputs, name) - getattr(labels, name)).square().sum()
        curvature = gram.diagonal() if structure == "diagonal" else gram
        terms[name] = Term(curvature, float(error), 0.0, float(len(rows)))
    flat = weights["weights"].flatten()
    best = maximise_evidence(terms, flat, fixed={})
    assert len(flat) < 12 + 144  # else the diagonal would not ask the evidence
    logs = {k: torch.tensor(np.log(v), requires_grad=True) for k, v in best.precisions.items()}
    value = log_evidence(terms, flat, logs)
    slopes = torch.autograd.grad(value, list(logs.values()))
    assert float(value.detach()) == pytest.approx(best.value)
    assert max(float(slope.abs()) for slope in slopes) < 1e-4
    found = pair_fit(regression.data, weights, structure=structure).found
    assert found["log_evidence"] == pytest.approx(best.value, rel=1e-9)
    assert found["forces_noise"] == pytest.approx(best.precisions["forces"] ** -0.5, rel=1e-5)
    for name in best.precisions:
        for factor in (0.8, 1.25):
            moved = {k: torch.tensor(np.log(v)) for k, v in best.precisions.items()}
            moved[name] = moved[name] + np.log(factor)
            assert float(log_evidence(terms, flat, moved)) < best.value


def test_a_noisy_model_brings_its_own_noise(regression: Regression, weights: Params) -> None:
    spec = NoiseSpec("joint", "mean_log", "equivariant", stress=False)
    model = replace(PAIR, noise_spec=spec)
    heads = {
        "energy_noise": torch.tensor(2 * np.log(ENERGY_STD) + np.log(LAMBDAS.energy)),
        "forces_noise": torch.tensor(2 * np.log(FORCES_STD) + np.log(LAMBDAS.forces)),
    }
    chosen = options(prior_precision=PRIOR)
    posterior = fit(model, weights | heads, regression.data, options=chosen, lambdas=LAMBDAS)
    assert isinstance(posterior.gaussian, LastLayer)
    factor = posterior.gaussian.factor
    exact = torch.linalg.inv(regression.precision())
    torch.testing.assert_close(factor @ factor.T, exact, rtol=1e-6, atol=1e-6 * exact.max())
    expected = regression.evidence(ENERGY_STD, FORCES_STD, PRIOR)
    assert posterior.found["log_evidence"] == pytest.approx(expected, rel=1e-9)
    assert "energy_noise" not in posterior.found
    told = replace(chosen, energy_noise=0.1)
    with pytest.raises(ValueError, match=r"energy_noise=0\.1: this model predicts the noise"):
        fit(model, weights | heads, regression.data, options=told, lambdas=LAMBDAS)
    diagonal = replace(chosen, structure="diagonal", predictive="sampled")
    posterior = fit(model, weights | heads, regression.data, options=diagonal, lambdas=LAMBDAS)
    assert isinstance(posterior.gaussian, Diagonal)
    assert posterior.gaussian.std["energy_noise"] == 0
    drawn = posterior.draw(3, seed=0)
    assert torch.equal(drawn["forces_noise"], heads["forces_noise"].expand(3))
    assert (drawn["weights"].std(0) > 0).all()
    assert posterior.found["weights"] == weights["weights"].numel()


def test_what_the_data_do_not_reach_keeps_the_prior(weights: Params) -> None:
    frames = [replace(f, numbers=np.full(4, 1)) for f in noisy_frames(3)]  # no oxygen at all
    posterior = pair_fit(dataset(frames), weights, structure="diagonal", **GIVEN)
    assert isinstance(posterior.gaussian, Diagonal)
    std = posterior.gaussian.std["weights"]
    torch.testing.assert_close(std[1:], torch.full_like(std[1:], PRIOR**-0.5))
    assert (std[0] < 0.99 * PRIOR**-0.5).any()


def spread_of(posterior: Posterior, model: LaplaceModel, batch: GraphBatch) -> EpistemicVariances:
    assert isinstance(posterior, ClosedForm)
    params = {name: value[0] for name, value in posterior.draw(1, seed=0).items()}
    with torch.no_grad():
        outputs = evaluate(model, params, batch)
        return posterior.spread(model, params, batch, outputs, forces=True, stress=False)


@pytest.fixture(scope="module")
def race() -> Race:
    joint = NoiseSpec("joint", "extensive", "equivariant", stress=False)
    return Race(small_spec(ELEMENTS, noise=joint))


@pytest.fixture(scope="module")
def fitted(race: Race) -> dict[tuple[str, str], Laplace]:
    params = race.init(0, dtype=torch.float64)
    data = dataset(noisy_frames(6), race)
    return {
        (structure, predictive): fit(
            race,
            params,
            data,
            options=options(structure=structure, predictive=predictive, probes=4),
            lambdas=LAMBDAS,
        )
        for structure, predictive in KINDS
    }


@pytest.mark.parametrize("structure", ["diagonal", "last_layer"])
def test_force_covariances_rotate(
    race: Race, fitted: dict[tuple[str, str], Laplace], structure: str
) -> None:
    frame = random_frame(ELEMENTS, 5, seed=50, apart=1.0)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    moved = replace(frame, positions=frame.positions @ turn.T)
    posterior = fitted[structure, "glm"]
    before, after = (spread_of(posterior, race, graph_of(race, f)) for f in (frame, moved))
    assert before.forces is not None
    matrix = torch.from_numpy(turn)
    scale = float(before.forces.abs().max())
    torch.testing.assert_close(
        after.forces, matrix @ before.forces @ matrix.T, rtol=1e-9, atol=1e-9 * scale
    )
    torch.testing.assert_close(after.energy, before.energy)
    assert float(torch.linalg.eigvalsh(before.forces).min()) > 0
    assert float((before.forces - before.forces.mT).abs().max()) < 1e-9 * scale


@pytest.mark.parametrize("structure", ["diagonal", "last_layer"])
def test_samples_scatter_as_the_closed_form_says(
    race: Race, fitted: dict[tuple[str, str], Laplace], structure: str
) -> None:
    """Small steps in the weights: draws around the mean, shrunk until the network is linear."""
    posterior = fitted[structure, "glm"]
    batch = graph_of(race, random_frame(ELEMENTS, 4, seed=3, apart=1.0))
    params = {name: value[0] for name, value in posterior.draw(1, seed=0).items()}
    drawn = posterior.draw(400, seed=1)
    tiny = 1e-5
    near = {name: params[name] + tiny * (drawn[name] - params[name]) for name in params}
    forces = torch.func.vmap(lambda p: evaluate(race, p, batch).forces)(near)
    deviation = (forces - evaluate(race, params, batch).forces) / tiny
    seen = torch.einsum("mni,mnj->nij", deviation, deviation) / 400
    expected = spread_of(posterior, race, batch).forces
    assert expected is not None
    error = (seen - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    assert float(error.max()) < 0.3  # √(2 / 400) = 0.07 for a single number
    trace = torch.einsum("nii->", seen) / torch.einsum("nii->", expected)
    assert float(trace) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_kinds_seeds_and_files(
    race: Race, fitted: dict[tuple[str, str], Laplace], kind: tuple[str, str]
) -> None:
    posterior: Posterior = fitted[kind]
    closed = kind[1] == "glm"
    assert isinstance(posterior, ClosedForm) == closed
    assert posterior.samples == (1 if closed else 16)
    params = race.init(0, dtype=torch.float64)
    for name, value in posterior.draw(1, seed=0).items():
        assert torch.equal(value[0], params[name]) or not closed
    # a file sorts names and turns options into text
    blob = safetensors.torch.load(
        safetensors.torch.save({k: v.contiguous() for k, v in posterior.tensors().items()})
    )
    text = json.loads(json.dumps(posterior.options()))
    again = Laplace.restore(blob, text)
    assert type(again) is type(posterior)
    assert again.options() == posterior.options()
    one, two, other = (p.draw(5, seed=s) for p, s in ((posterior, 3), (again, 3), (again, 4)))
    assert one.keys() == two.keys() == params.keys()
    assert all(torch.equal(one[name], two[name]) for name in params)
    assert any(not torch.equal(one[name], other[name]) for name in params)
    if closed:
        batch = graph_of(race, random_frame(ELEMENTS, 4, seed=3, apart=1.0))
        torch.testing.assert_close(spread_of(again, race, batch), spread_of(posterior, race, batch))
    else:
        with pytest.raises(ValueError, match=r"Laplace\.restore"):
            LinearisedLaplace.restore(blob, text)
    single = posterior.to(dtype=torch.float32).draw(5, seed=3)
    for name, value in single.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), one[name], rtol=1e-4, atol=1e-4)


def test_the_fit_repeats_and_tells_its_progress(race: Race) -> None:
    params, data = race.init(0, dtype=torch.float64), dataset(noisy_frames(3), race)
    for structure in ("diagonal", "last_layer"):
        chosen = options(structure=structure, probes=1)
        seen: list[int] = []
        first = fit(
            race, params, data, options=chosen, lambdas=LAMBDAS, progress=seen.append
        ).tensors()
        second = fit(race, params, data, options=chosen, lambdas=LAMBDAS).tensors()
        assert seen[-1] == 3
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_folded_weights_give_the_same_spread(
    race: Race, fitted: dict[tuple[str, str], Laplace]
) -> None:
    batch = graph_of(race, random_frame(ELEMENTS, 4, seed=3, apart=1.0))
    params = race.init(0, dtype=torch.float64)
    for structure in ("diagonal", "last_layer"):
        posterior = fitted[structure, "glm"]
        assert isinstance(posterior, LinearisedLaplace)
        folded = race.fold(params)
        outputs = evaluate(race, folded, batch)
        found = posterior.spread(race, folded, batch, outputs, forces=True, stress=False)
        torch.testing.assert_close(found, spread_of(posterior, race, batch))


def test_noise_of_more_weights_than_labels_is_that_of_the_residuals() -> None:
    """The diagonal's evidence would explain all by noise; the last layer's need not."""
    model = Race(small_spec(ELEMENTS, noise=NO_NOISE))
    params, data = model.init(0, dtype=torch.float64), dataset(noisy_frames(4), model)
    batch, labels = data.batch(range(4), dtype=torch.float64)
    outputs = evaluate(model, params, batch)
    rms = {
        "energy_noise": float((outputs.energy - labels.energy).square().mean().sqrt()),
        "forces_noise": float((outputs.forces - labels.forces).square().mean().sqrt()),
    }

    def found(**changes: Any) -> dict[str, float]:
        chosen = options(**changes)
        return dict(fit(model, params, data, options=chosen, lambdas=LAMBDAS).found)

    automatic = found(structure="diagonal")
    assert automatic["weights"] > 52
    for name, value in rms.items():
        assert automatic[name] == pytest.approx(value)
        assert found(structure="diagonal", noise="evidence")[name] > 1.05 * value
        assert found(noise="residuals")[name] == pytest.approx(value)
        assert found()[name] == found(noise="evidence")[name] != pytest.approx(value)
        assert found(structure="diagonal", **{name: 0.5})[name] == pytest.approx(0.5)


def test_energies_alone_are_enough(race: Race) -> None:
    model = Race(small_spec(ELEMENTS, noise=NO_NOISE))
    frames = [replace(frame, forces=None) for frame in noisy_frames(5)]
    params = model.init(0, dtype=torch.float64)
    for structure in ("diagonal", "last_layer"):
        posterior = fit(
            model,
            params,
            dataset(frames, model),
            options=options(structure=structure),
            lambdas=LAMBDAS,
        )
        assert "forces_noise" not in posterior.found
        assert posterior.found["energy_noise"] > 0
    bare = [replace(frame, energy=None) for frame in frames]
    with pytest.raises(ValueError, match="no training frame has a label"):
        fit(model, params, dataset(bare, model), options=options(), lambdas=LAMBDAS)


def test_no_samples_are_refused(fitted: dict[tuple[str, str], Laplace]) -> None:
    for posterior in fitted.values():
        with pytest.raises(ValueError, match="samples=0: draw at least 1"):
            posterior.draw(0, seed=0)
