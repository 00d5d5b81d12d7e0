"""SWAG: the Gaussian its formula promises, of known draws and of a real path, killed or not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.core.protocols import Posterior
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.likelihood.mse import SquaredError
from bayrace.models.noise import Lambdas
from bayrace.models.pair import PairModel
from bayrace.posterior.gaussian.low_rank import Collector, Scaling, Swag
from bayrace.posterior.swag import SNAPSHOTS, SnapshotRecorder, SwagOptions
from bayrace.posterior.swag import fit as fit_task
from bayrace.train.adam import AdamSettings
from bayrace.train.checkpoint import CheckpointError
from bayrace.train.loop import FitResult, TrainSettings
from bayrace.train.schedule import Plateau

from .tasks import fit_by

SIZE = 5
LOW_RANK_SHARE: dict[Scaling, float] = {"maddox": 0.5, "paper": 1.0}


fit = partial(fit_by, fit_task)


def known_gaussian() -> tuple[Tensor, Tensor]:
    """A mean and a covariance with strong correlations."""
    stream = torch.Generator().manual_seed(0)
    root = torch.randn(SIZE, SIZE, generator=stream, dtype=torch.float64)
    return 10 * torch.randn(SIZE, generator=stream, dtype=torch.float64), root @ root.T


def as_params(values: Tensor) -> Params:
    """Two named tensors from (..., SIZE)."""
    return {"z": values[..., :4].reshape(*values.shape[:-1], 2, 2), "a": values[..., 4]}


def as_vectors(params: Params) -> Tensor:
    return torch.cat([params["z"].flatten(-2), params["a"][..., None]], -1)


def collected(count: int, rank: int) -> Collector:
    """Fed with draws of the known Gaussian."""
    mean, covariance = known_gaussian()
    stream = torch.Generator().manual_seed(1)
    noise = torch.randn(count, SIZE, generator=stream, dtype=torch.float64)
    collector = Collector.empty(rank)
    for value in mean + noise @ torch.linalg.cholesky(covariance).T:
        collector = collector.add(as_params(value))
    return collector


def standard_error(covariance: Tensor, count: float) -> Tensor:
    """Of the entries of a sample covariance: √((C_ii C_jj + C_ij²) / count)."""
    diagonal = covariance.diagonal()
    return ((diagonal[:, None] * diagonal + covariance.square()) / count).sqrt()


@pytest.mark.parametrize("scaling", ["maddox", "paper"])
def test_draws_of_a_known_gaussian_give_its_mean_and_half_its_two_parts(scaling: Scaling) -> None:
    """Within 5 standard errors, from both the snapshots and the draws.

    With K = all snapshots, DDᵀ/(K - 1) estimates the covariance, and the k-th deviation, from a
    mean that it is part of, has (k - 1)/k of it. The errors of Σ_diag and DDᵀ come from the same
    snapshots; the sum of their standard errors bounds that of the sum.
    """
    snapshots, draws = 2000, 6000
    mean, covariance = known_gaussian()
    posterior = collected(snapshots, snapshots).posterior(
        scaling=scaling, samples=30, dtype=torch.float64
    )
    drawn = as_vectors(posterior.draw(draws, seed=0))
    share = LOW_RANK_SHARE[scaling]
    shrinking = sum((k - 1) / k for k in range(1, snapshots + 1)) / (snapshots - 1)
    diagonal = torch.diag(covariance.diagonal()) * (1 - 1 / snapshots)
    expected = 0.5 * diagonal + share * shrinking * covariance
    off_mean = (covariance.diagonal() / snapshots).sqrt() + (expected.diagonal() / draws).sqrt()
    assert float(((drawn.mean(0) - mean).abs() / off_mean).max()) < 5
    error = standard_error(expected, draws)
    error += (0.5 * torch.eye(SIZE) + share) * standard_error(covariance, snapshots)
    assert float(((drawn.T.cov() - expected).abs() / error).max()) < 5
    other = 0.5 * diagonal + (1.5 - share) * shrinking * covariance
    assert (
        float(((drawn.T.cov() - other).abs() / error).max()) > 5
    )  # the scalings can be told apart


@pytest.mark.parametrize("scaling", ["maddox", "paper"])
def test_draws_have_the_covariance_of_mean_variance_and_deviations(scaling: Scaling) -> None:
    """Of a low rank, whatever the snapshots were: within 5 standard errors of 20 000 draws."""
    posterior = collected(40, 3).posterior(scaling=scaling, samples=30, dtype=torch.float64)
    columns = as_vectors(posterior.deviations)
    assert columns.shape == (3, SIZE)
    expected = 0.5 * torch.diag(as_vectors(posterior.variance))
    expected += LOW_RANK_SHARE[scaling] * columns.T @ columns / (3 - 1)
    draws = 20_000
    drawn = as_vectors(posterior.draw(draws, seed=1))
    error = (drawn.mean(0) - as_vectors(posterior.mean)).abs()
    assert float((error / (expected.diagonal() / draws).sqrt()).max()) < 5
    spread = (drawn.T.cov() - expected).abs()
    assert float((spread / standard_error(expected, draws)).max()) < 5


def test_moments_are_those_of_all_snapshots_and_deviations_of_the_last() -> None:
    values = torch.randn(7, SIZE, generator=torch.Generator().manual_seed(2)).double()
    collector = Collector.empty(3)
    for value in values:
        collector = collector.add(as_params(value))
    posterior = collector.posterior(scaling="maddox", samples=1, dtype=torch.float64)
    torch.testing.assert_close(as_vectors(posterior.mean), values.mean(0))
    torch.testing.assert_close(as_vectors(posterior.variance), values.var(0, correction=0))
    running = torch.stack([values[: k + 1].mean(0) for k in (4, 5, 6)])
    torch.testing.assert_close(as_vectors(posterior.deviations), values[4:] - running)


def test_small_variances_of_large_weights_survive() -> None:
    """E[θ²] - E[θ]² would lose them: 1e6 squared has an ulp of 1e-4 in float64."""
    collector = Collector.empty(2)
    for index in range(1000):
        value = torch.tensor([1e6 + 1e-4 * (-1) ** index], dtype=torch.float64)
        collector = collector.add({"w": value})
    posterior = collector.posterior(scaling="maddox", samples=1, dtype=torch.float64)
    assert float(posterior.variance["w"]) == pytest.approx(1e-8, rel=1e-4)
    still = Collector.empty(2).add({"w": torch.ones(1)}).add({"w": torch.ones(1)})
    assert (
        float(still.posterior(scaling="paper", samples=1, dtype=torch.float32).variance["w"]) == 0
    )


def test_one_snapshot_is_not_enough() -> None:
    with pytest.raises(ValueError, match="1 snapshots; a variance needs at least 2"):
        collected(1, 5).posterior(scaling="maddox", samples=1, dtype=torch.float64)


def test_draws_depend_on_the_seed_and_their_place_only() -> None:
    posterior: Posterior = collected(9, 4).posterior(
        scaling="maddox", samples=30, dtype=torch.float64
    )
    many, few = posterior.draw(9, seed=3), posterior.draw(4, seed=3)
    assert all(torch.equal(many[name][:4], few[name]) for name in many)
    assert not torch.equal(many["z"][0], many["z"][1])
    assert not torch.equal(many["z"][0], posterior.draw(1, seed=4)["z"][0])
    with pytest.raises(ValueError, match="samples=0: draw at least 1, for example 30"):
        posterior.draw(0, seed=0)


def test_round_trip_in_any_order_of_the_tensors() -> None:
    posterior = collected(9, 4).posterior(scaling="paper", samples=6, dtype=torch.float64)
    shuffled = dict(sorted(posterior.tensors().items()))
    assert list(shuffled) != list(posterior.tensors())
    again = Swag.restore(shuffled, posterior.options())
    before, after = posterior.draw(3, seed=1), again.draw(3, seed=1)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (again.samples, again.scaling) == (6, "paper")
    single = posterior.to(dtype=torch.float32).draw(3, seed=1)
    assert single["z"].dtype == torch.float32
    torch.testing.assert_close(single["z"].double(), before["z"], rtol=1e-5, atol=1e-5)


MODEL = PairModel(elements=(1,), cutoff=4.0, functions=3)
SQUARES = SquaredError(Lambdas(1.0, 1.0, 0.0), False, "none", 0.01)


def data(count: int, *, seed: int) -> Dataset:
    """Dimers with an energy and forces that the model cannot have all at once."""
    random = np.random.default_rng(seed)
    frames = [
        Frame(
            numbers=np.array([1, 1]),
            positions=np.array([[0.0, 0, 0], [0, 0, random.uniform(1, 3)]]),
            cell=np.zeros((3, 3)),
            pbc=np.zeros(3, dtype=bool),
            energy=float(random.standard_normal()),
            forces=random.standard_normal((2, 3)),
            stress=None,
            config_type="Default",
            weight=1.0,
            source="dimers",
            index=index,
        )
        for index in range(count)
    ]
    return Dataset(frames, elements=(1,), cutoff=4.0, references={1: 0.0})


def settings(**changes: Any) -> TrainSettings:
    base = TrainSettings(
        optimiser=AdamSettings("amsgrad", 0.5, 0.0, (0.9, 0.999), 1e-8),
        schedule=Plateau(factor=0.5, patience=0, threshold=0.1, minimum=0.0),
        batch_size=4,
        edge_budget=None,
        valid_batch_size=8,
        max_epochs=1,
        max_time=1e-9,
        max_gradient_norm=10.0,
        ema=0.99,
        valid_every=3,
        early_stopping=1,
        min_improvement=0.0,
        monitor="loss",
        stress=False,
        checkpoint_every=1e9,
        seed=3,
        dtype="float64",
        device="cpu",
    )
    return replace(base, **changes)


def options(**changes: Any) -> SwagOptions:
    values: dict[str, Any] = {
        "lr": 0.05,
        "epochs": 10,
        "burn_in": 1,
        "every": 2,
        "rank": 3,
        "scaling": "maddox",
        "samples": 30,
    }
    return SwagOptions(**(values | changes))


def train(folder: Path, chosen: SwagOptions, **more: Any) -> tuple[Swag | None, FitResult]:
    initial = {"weights": torch.full((1, 3), 0.2, dtype=torch.float64)}
    return fit(
        MODEL,
        lambda epoch: SQUARES,
        data(12, seed=0),
        data(6, seed=1),
        settings=settings(),
        folder=folder,
        options=chosen,
        refit_epochs=0,
        initial=initial,
        **more,
    )


def test_training_goes_on_at_a_constant_rate_and_keeps_snapshots(tmp_path: Path) -> None:
    posterior, result = train(tmp_path, options())
    assert posterior is not None
    assert result.reason == "epochs"
    assert [line["learning_rate"] for line in result.history] == [0.05] * 10
    files = sorted(path.name for path in (tmp_path / SNAPSHOTS).iterdir())
    assert files == ["000003.ckpt", "000005.ckpt", "000007.ckpt", "000009.ckpt"]
    assert posterior.deviations["weights"].shape == (3, 1, 3)
    assert posterior.samples == 30
    assert float(posterior.variance["weights"].min()) > 0
    assert posterior.mean["weights"].dtype == torch.float64


def test_an_interrupted_run_goes_on_to_the_same_posterior(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", options())
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 17  # in the sixth epoch; the checkpoint on disk is as old as the third

    nothing, result = train(tmp_path / "parts", options(), stop=stop)
    assert nothing is None
    assert result.reason == "interrupted"
    parts, _ = train(tmp_path / "parts", options(), resume=True)
    again, _ = train(tmp_path / "parts", options(), resume=True)  # nothing is left to do
    assert whole is not None
    for other in (parts, again):
        assert other is not None
        for name, value in whole.tensors().items():
            assert torch.equal(value, other.tensors()[name])


def test_a_kill_between_snapshot_and_checkpoint_loses_nothing(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", options())

    class Killed(BaseException):
        pass

    def die(event: object) -> None:
        if getattr(event, "step", 0) == 16:  # the first step after the snapshot of epoch 5
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path / "killed", options(), observer=die)
    assert (tmp_path / "killed" / SNAPSHOTS / "000005.ckpt").is_file()
    resumed, _ = train(tmp_path / "killed", options(), resume=True)
    assert whole is not None
    assert resumed is not None
    assert all(torch.equal(v, resumed.tensors()[name]) for name, v in whole.tensors().items())


def test_snapshots_of_other_options_are_missed(tmp_path: Path) -> None:
    train(tmp_path, options())
    with pytest.raises(CheckpointError, match=r"000002\.ckpt: the snapshot of epoch 2 is missing"):
        train(tmp_path, options(every=1), resume=True)
    with pytest.raises(CheckpointError, match=r"last\.ckpt exists; resume that run"):
        train(tmp_path, options())
    assert len(list((tmp_path / SNAPSHOTS).iterdir())) == 4  # a refused run removes nothing


def test_a_recorder_keeps_the_last_part_of_a_training(tmp_path: Path) -> None:
    """Of however many epochs it turns out to have; the moments are those of the kept ones."""
    values = torch.randn(11, SIZE, generator=torch.Generator().manual_seed(3)).double()
    recorder = SnapshotRecorder(tmp_path, options(start=0.5, every=2, rank=2))
    for epoch, value in enumerate(values, start=1):
        recorder(epoch, as_params(value))
        kept = sorted(int(path.stem) for path in (tmp_path / SNAPSHOTS).glob("*"))
        done = epoch - epoch % 2
        assert kept == [k for k in range(2, done + 1, 2) if k > done / 2]
    posterior = recorder.posterior(settings())
    assert kept == [6, 8, 10]
    chosen = values[[5, 7, 9]]
    torch.testing.assert_close(as_vectors(posterior.mean), chosen.mean(0))
    torch.testing.assert_close(as_vectors(posterior.variance), chosen.var(0, correction=0))
    assert posterior.deviations["a"].shape == (2,)
    recorder(10, as_params(values[9]))  # a resumed run repeats what its checkpoint lacks
    assert torch.equal(recorder.posterior(settings()).mean["z"], posterior.mean["z"])


def test_too_short_a_training_has_no_snapshots_to_use(tmp_path: Path) -> None:
    recorder = SnapshotRecorder(tmp_path, options(start=0.9, every=1))
    for epoch in (1, 2, 3):
        recorder(epoch, as_params(torch.zeros(SIZE)))
    with pytest.raises(ValueError, match=r"start=0\.9 and every=1 give 1 snapshots of this"):
        recorder.posterior(settings())
    with pytest.raises(ValueError, match=r"set posterior\.swag\.start=null for a tail"):
        train(tmp_path / "tail", options(start=0.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 4, "every": 3}, "give 1 snapshots; a variance needs at least 2"),
        ({"every": 0}, "every=0, burn_in=1: every counts epochs from 1 up"),
        ({"start": 1.0}, r"start=1\.0: give a fraction from 0 up to 1"),
        ({"rank": 1}, "rank=1, samples=30: the low-rank part needs at least 2"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(**changes)
