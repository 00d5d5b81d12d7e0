"""IVON: the mean-field optimum of a linear model, its Gaussian, and runs that survive a kill."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from bayrace.core.protocols import Posterior
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.likelihood.gaussian import GaussianNoise
from bayrace.likelihood.mse import SquaredError
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, NoiseSpec
from bayrace.models.pair import PairModel
from bayrace.posterior.ivon import Ivon, IvonOptions
from bayrace.posterior.ivon import fit as fit_task
from bayrace.testing.structures import random_frame
from bayrace.train.adam import AdamSettings
from bayrace.train.loop import TrainSettings
from bayrace.train.loop import fit as train_loop
from bayrace.train.schedule import WarmupCosine
from bayrace.train.state import load_last
from bayrace.train.task import Task

from .tasks import fit_by

fit = partial(fit_by, fit_task)


CUTOFF = 4.0
LAMBDA_E, LAMBDA_F = 100.0, 60.0  # noise of 0.1 eV, and √(3·2/60) eV/Å on a force component
MODEL = PairModel(elements=(1, 8), cutoff=CUTOFF, functions=2)
SQUARES = SquaredError(Lambdas(LAMBDA_E, LAMBDA_F, 0.0), False, "none", 0.01)


def options(**changes: Any) -> IvonOptions:
    """From scratch as the paper's, but for `hessian`, with variances that the steps found."""
    values: dict[str, Any] = {
        "start": 0.0,
        "lr": 0.05,
        "ess": "structures",
        "hess_init": 0.5,
        "betas": (0.9, 0.999995),
        "weight_decay": 1e-4,
        "clip_radius": 1.0,
        "hessian": "averaged",
        "samples": 16,
        "fisher": 0,
    }
    return IvonOptions(**(values | changes))


def settings(**changes: Any) -> TrainSettings:
    base = TrainSettings(
        optimiser=AdamSettings("amsgrad", 0.01, 0.0, (0.9, 0.999), 1e-8),  # not used
        schedule=WarmupCosine(warmup=100, floor=0.01),  # the configuration's default
        batch_size=18,
        edge_budget=None,
        valid_batch_size=18,
        max_epochs=2500,
        max_time=None,
        max_gradient_norm=10.0,
        ema=0.99,
        valid_every=10_000,
        early_stopping=None,
        min_improvement=0.0,
        monitor="loss",
        stress=False,
        checkpoint_every=1e9,
        seed=0,
        dtype="float64",
        device="cpu",
    )
    return replace(base, **changes)


def dimers(count: int, *, seed: int) -> list[Frame]:
    """Pairs of atoms, three kinds in turn, at distances from 1 to 3.8 Å; labels are zero."""
    random = np.random.default_rng(seed)
    result = []
    for index, distance in enumerate(np.linspace(1.0, 3.8, count)):
        direction = random.standard_normal(3)
        apart = distance * direction / np.linalg.norm(direction)
        result.append(
            Frame(
                numbers=np.array([[1, 1], [1, 8], [8, 8]][index % 3]),
                positions=np.stack([0 * apart, apart]),
                cell=np.zeros((3, 3)),
                pbc=np.zeros(3, dtype=bool),
                energy=0.0,
                forces=np.zeros((2, 3)),
                stress=None,
                config_type="Default",
                weight=1.0,
                source="dimers",
                index=index,
            )
        )
    return result


def molecules(count: int, atoms: int) -> list[Frame]:
    """Both elements in each; labels are zero."""
    return [
        replace(
            random_frame((1, 8), atoms, seed=seed, apart=1.2),
            energy=0.0,
            forces=np.zeros((atoms, 3)),
        )
        for seed in range(count)
    ]


def as_data(frames: list[Frame]) -> Dataset:
    return Dataset(frames, elements=(1, 8), cutoff=CUTOFF, references={1: 0.0, 8: 0.0})


@dataclass(frozen=True, eq=False)
class Problem:
    """Labels drawn from the linear model with noise, and their exact posterior."""

    data: Dataset
    precision: Tensor  # (6, 6) of the weights, prior included
    mean: Tensor  # (6,)


def problem(count: int, *, ess: float, weight_decay: float, atoms: int = 2) -> Problem:
    frames = dimers(count, seed=0) if atoms == 2 else molecules(count, atoms)
    size = (1 + 3 * atoms) * count  # labels
    batch, _ = as_data(frames).batch(range(count), dtype=torch.float64)

    def predict(weights: Tensor) -> Tensor:
        outputs = evaluate(MODEL, {"weights": weights}, batch)
        return torch.cat([outputs.energy, outputs.forces[batch.file_order].flatten()])

    units = torch.eye(6, dtype=torch.float64).reshape(6, 3, 2)
    design = torch.func.vmap(predict)(units).T
    variance = torch.full((size,), 3 * atoms / LAMBDA_F, dtype=torch.float64)
    variance[:count] = 1 / LAMBDA_E
    stream = torch.Generator().manual_seed(1)
    truth, noise = (torch.randn(n, generator=stream, dtype=torch.float64) for n in (6, size))
    labels = design @ truth + variance.sqrt() * noise
    energies, forces = labels[:count].tolist(), labels[count:].reshape(count, atoms, 3).numpy()
    made = [
        replace(frame, energy=energies[k], forces=forces[k].copy())
        for k, frame in enumerate(frames)
    ]
    scaled = design / variance[:, None]
    strength = ess / count  # the likelihood to this power
    precision = strength * design.T @ scaled + ess * weight_decay * torch.eye(6).double()
    mean = torch.linalg.solve(precision, strength * scaled.T @ labels)
    return Problem(as_data(made), precision, mean)


def train(given: Problem, folder: Path, chosen: IvonOptions, **changes: Any) -> Ivon:
    data = given.data
    posterior, result = fit(
        MODEL,
        lambda epoch: SQUARES,
        data,
        data,
        settings=settings(**changes),
        folder=folder,
        options=chosen,
        refit_epochs=0,
        initial=None,
    )
    assert result.reason == "epochs"
    return posterior


def test_reaches_the_mean_field_optimum_at_default_settings(tmp_path: Path) -> None:
    """2500 steps from random weights, 28 σ away: mean within 0.15 σ, variances within 15 %.

    The optimum of a diagonal Gaussian has the exact mean and 1/diag of the exact precision; the
    weights are correlated, so that the exact variances are up to 5 times larger. What is left
    after so many steps is noise; of twelve seeds the worst were 0.10 σ and 10 %
    before averages were drawn together (not counted again since).
    """
    given = problem(18, ess=18, weight_decay=1e-4)
    optimum = 1 / given.precision.diagonal()
    start = MODEL.init(0, dtype=torch.float64)["weights"].flatten()
    assert float(((start - given.mean) / optimum.sqrt()).abs().max()) > 20
    exact = torch.linalg.inv(given.precision).diagonal()
    assert float((exact / optimum).max()) > 5
    posterior = train(given, tmp_path, options())
    error = (posterior.mean["weights"].flatten() - given.mean) / optimum.sqrt()
    ratio = posterior.variance()["weights"].flatten() / optimum
    assert float(error.abs().max()) < 0.15
    assert float((ratio - 1).abs().max()) < 0.15


def test_variances_are_the_mean_field_optimum_with_minibatches_at_default_settings(
    tmp_path: Path,
) -> None:
    """Three molecules a step, 300 steps, the default ess: within 25 % of the optimum, each weight.

    Gradients of three molecules scatter by far more than the perturbed weights change them; of
    the measured variances the default number of structures leaves √(2/1000) = 4 % at least.
    """
    defaults = IvonOptions()
    assert defaults.ess == 1e5
    chosen = defaults
    given = problem(18, ess=1e5, weight_decay=defaults.weight_decay, atoms=8)
    posterior = train(given, tmp_path, chosen, max_epochs=50, batch_size=3)
    ratio = posterior.variance()["weights"].flatten() * given.precision.diagonal()
    assert float((ratio - 1).abs().max()) < 0.25


def test_the_papers_hessian_is_what_its_steps_left(tmp_path: Path) -> None:
    given = problem(18, ess=18, weight_decay=1e-4)
    posterior = train(given, tmp_path, options(hessian="paper"), max_epochs=3)
    _, state = load_last(tmp_path)
    assert torch.equal(posterior.hessian["weights"], state["hessian/weights"])


@pytest.mark.parametrize(("given", "size"), [(180.0, 180.0), ("atoms", 36.0)])
def test_ess_is_the_power_of_the_likelihood(
    tmp_path: Path, given: float | Literal["atoms"], size: float
) -> None:
    """500 steps leave noise of some 20 % on each of six variances; their mean has 8 %.

    The wrong power would be off by 50 % or more.
    """
    exact = problem(18, ess=size, weight_decay=1e-2)
    posterior = train(exact, tmp_path, options(ess=given, weight_decay=1e-2), max_epochs=500)
    ratio = posterior.variance()["weights"].flatten() * exact.precision.diagonal()
    assert posterior.ess == size
    assert abs(float(ratio.mean()) - 1) < 0.25


def gaussian() -> Ivon:
    stream = torch.Generator().manual_seed(0)
    mean = {"z": torch.randn(2, 3, generator=stream).double(), "a": torch.tensor(1.5).double()}
    hessian = {"z": torch.rand(2, 3, generator=stream).double(), "a": torch.tensor(4.0).double()}
    return Ivon(mean, hessian, ess=50.0, weight_decay=0.1, samples=7)


def test_draws_have_the_mean_and_variance_of_the_formula() -> None:
    """Within 5 standard errors: σ/√n of a mean, σ²√(2/n) of a variance."""
    posterior, count = gaussian(), 20_000
    drawn = posterior.draw(count, seed=0)
    for name, mean in posterior.mean.items():
        variance = 1 / (50 * (posterior.hessian[name] + 0.1))
        error = (drawn[name].mean(0) - mean) / (variance / count).sqrt()
        assert float(error.abs().max()) < 5
        spread = (drawn[name].var(0) / variance - 1) / (2 / count) ** 0.5
        assert float(spread.abs().max()) < 5


def test_draws_depend_on_the_seed_and_their_place_only() -> None:
    posterior: Posterior = gaussian()
    many, few = posterior.draw(9, seed=3), posterior.draw(4, seed=3)
    assert all(torch.equal(many[name][:4], few[name]) for name in many)
    assert not torch.equal(many["z"][0], many["z"][1])
    assert not torch.equal(many["z"][0], posterior.draw(1, seed=4)["z"][0])
    with pytest.raises(ValueError, match="samples=0: draw at least 1"):
        posterior.draw(0, seed=0)


def test_round_trip_in_any_order_of_the_tensors() -> None:
    posterior = gaussian()
    shuffled = dict(sorted(posterior.tensors().items()))
    assert list(shuffled) != list(posterior.tensors())
    again = Ivon.restore(shuffled, posterior.options())
    before, after = posterior.draw(3, seed=1), again.draw(3, seed=1)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert again.samples == posterior.samples == 7
    single = posterior.to(dtype=torch.float32).draw(3, seed=1)
    assert single["z"].dtype == torch.float32
    torch.testing.assert_close(single["z"].double(), before["z"], rtol=1e-5, atol=1e-5)


def test_same_seed_same_posterior_and_resuming_is_exact(tmp_path: Path) -> None:
    given, few = problem(18, ess=18, weight_decay=1e-4), {"batch_size": 8, "checkpoint_every": 0.0}
    whole = train(given, tmp_path / "whole", options(), max_epochs=6, **few)
    asked = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 10  # in the middle of the fourth epoch

    arguments = (MODEL, lambda epoch: SQUARES, given.data, given.data)
    chosen = {"settings": settings(max_epochs=6, **few), "folder": tmp_path / "parts"}
    _, result = fit(
        *arguments, **chosen, options=options(), refit_epochs=0, initial=None, stop=stop
    )
    assert result.reason == "interrupted"
    parts, _ = fit(
        *arguments, **chosen, options=options(), refit_epochs=0, initial=None, resume=True
    )
    other = train(given, tmp_path / "other", options(), max_epochs=6, **few, seed=1)
    for name, value in whole.tensors().items():
        assert torch.equal(value, parts.tensors()[name])
        assert not torch.equal(value, other.tensors()[name])


def parts(folder: Path, given: Problem, **changes: Any) -> tuple[Ivon | None, Any]:
    """Eight epochs of three batches: six by AMSGrad and two by IVON."""
    chosen: dict[str, Any] = {
        "settings": settings(max_epochs=8, batch_size=6, checkpoint_every=0.0),
        "options": options(start=0.75, lr=0.001, hess_init=100.0),
        "initial": None,
    }
    found: tuple[Ivon | None, Any] = fit(
        MODEL,
        lambda epoch: SQUARES,
        given.data,
        given.data,
        folder=folder,
        refit_epochs=0,
        **(chosen | changes),
    )
    return found


def test_the_runs_own_optimiser_has_the_first_part(tmp_path: Path) -> None:
    """It is a training by itself, and IVON begins where its best validation was."""
    given = problem(18, ess=18, weight_decay=1e-4)
    whole, result = parts(tmp_path / "whole", given)
    assert result.reason == "epochs"
    ordinary = settings(max_epochs=6, batch_size=6)
    where = tmp_path / "network"
    task = Task(MODEL, lambda epoch: SQUARES, given.data, given.data, ordinary, where)
    network = train_loop(task)
    weights, state = load_last(tmp_path / "whole")
    assert torch.equal(weights["weights"], load_last(where)[0]["weights"])
    assert "hessian/weights" not in state
    last, _ = parts(tmp_path / "last", given, initial=network.params)
    assert whole is not None
    assert last is not None
    assert all(torch.equal(value, last.tensors()[name]) for name, value in whole.tensors().items())
    _, state = load_last(tmp_path / "whole" / "ivon")
    assert int(state["count"]) == 2 * 3


@pytest.mark.parametrize("steps", [10, 20])
def test_both_parts_can_be_interrupted(tmp_path: Path, steps: int) -> None:
    """After ten steps of the network's eighteen, or two of IVON's six."""
    given = problem(18, ess=18, weight_decay=1e-4)
    whole, _ = parts(tmp_path / "whole", given)
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > steps

    _, result = parts(tmp_path / "parts", given, stop=stop)
    assert result.reason == "interrupted"
    assert (tmp_path / "parts" / "ivon").exists() == (steps > 18)
    resumed, result = parts(tmp_path / "parts", given, resume=True)
    assert result.reason == "epochs"
    assert whole is not None
    assert resumed is not None
    for name, value in whole.tensors().items():
        assert torch.equal(value, resumed.tensors()[name])


def test_ivon_has_one_epoch_at_least() -> None:
    assert [IvonOptions().first_epochs(epochs) for epochs in (1, 2, 4, 40)] == [0, 1, 3, 30]
    assert IvonOptions(start=0.0).first_epochs(40) == 0
    with pytest.raises(ValueError, match=r"ivon: start=1\.0: give a fraction"):
        IvonOptions(start=1.0)


def test_starts_from_given_weights_and_validates_the_mean(tmp_path: Path) -> None:
    given = problem(18, ess=18, weight_decay=1e-4)
    initial = {"weights": given.mean.reshape(3, 2)}
    posterior, result = fit(
        MODEL,
        lambda epoch: SQUARES,
        given.data,
        given.data,
        settings=settings(max_epochs=1, schedule=WarmupCosine(warmup=0, floor=1.0)),
        folder=tmp_path,
        options=options(),
        refit_epochs=0,
        initial=initial,
    )
    moved = (posterior.mean["weights"] - initial["weights"]).abs()
    assert 0 < float(moved.max()) <= 0.05 + 1e-12  # the clip radius times the learning rate
    batch, labels = given.data.batch(range(18), dtype=torch.float64)
    outputs = evaluate(MODEL, posterior.mean, batch)
    loss = float(SQUARES.loss(outputs, labels, batch).total)
    assert result.metrics["loss"] == pytest.approx(loss, rel=1e-12)
    assert torch.equal(result.params["weights"], posterior.mean["weights"])


def test_the_likelihood_proper_is_minimised_after_its_warm_up(tmp_path: Path) -> None:
    """β would weigh the terms; a run with it must equal one without, but not in the warm-up."""
    data = problem(18, ess=18, weight_decay=1e-4).data
    spec = NoiseSpec("energy", "extensive", "equivariant", stress=False)
    noisy = replace(MODEL, noise_spec=spec)

    def run(beta: float, folder: Path, *, epochs: int, warm: int) -> Ivon:
        late = GaussianNoise(spec, Lambdas(1.0, 1.0, 0.0), beta=beta, warmup=False)
        early = replace(late, warmup=True)
        posterior, _ = fit(
            noisy,
            lambda epoch: early if epoch < warm else late,
            data,
            data,
            settings=settings(max_epochs=epochs),
            folder=folder,
            options=options(),
            refit_epochs=0,
            initial=None,
        )
        return posterior

    plain, weighed = (run(b, tmp_path / f"late-{b}", epochs=3, warm=0) for b in (0.0, 0.5))
    assert all(torch.equal(plain.mean[name], weighed.mean[name]) for name in plain.mean)
    plain, weighed = (run(b, tmp_path / f"early-{b}", epochs=3, warm=2) for b in (0.0, 0.5))
    assert not torch.equal(plain.mean["energy_noise"], weighed.mean["energy_noise"])


def test_nonsense_is_refused(tmp_path: Path) -> None:
    given = problem(6, ess=6, weight_decay=1e-4)
    with pytest.raises(ValueError, match=r"ivon: weight_decay=0\.0 must be positive"):
        train(given, tmp_path, options(weight_decay=0.0))
    with pytest.raises(ValueError, match="hessian='exact' is unknown; use averaged or paper"):
        train(given, tmp_path, options(hessian="exact"))
    with pytest.raises(ValueError, match="ess='frames' is unknown; use structures, atoms or a"):
        train(given, tmp_path, options(ess="frames"))
    with pytest.raises(ValueError, match="samples=0: use at least 1"):
        options(samples=0)
