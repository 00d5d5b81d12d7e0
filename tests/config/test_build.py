from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.config import ConfigError, make_config
from bayrace.config.build import label_keys, lambdas, likelihoods, noise_spec, train_settings
from bayrace.data.dataset import Dataset
from bayrace.data.embedded import embedded_frames
from bayrace.data.read import elements_of
from bayrace.likelihood.gaussian import GaussianNoise
from bayrace.likelihood.mse import SquaredError
from bayrace.models.noise import Lambdas
from bayrace.train.monitors import MONITORS
from bayrace.train.optim import peak_rate
from bayrace.train.schedule import Constant, Plateau, WarmupCosine


def config(*overrides):
    return make_config({"data": {"train": "a.xyz"}}, overrides)


def data(name, frames=3, **changes):
    found = [replace(frame, **changes) for frame in embedded_frames(name)[:frames]]
    return Dataset(found, elements=elements_of(found), cutoff=3.0, references={1: 0.0, 7: 0.0})


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({}, (), True),
        ({}, ("loss.kind=mse",), True),
        ({}, ("loss.forces=20",), True),
        ({}, ("loss.stress=0",), 0.0),
        ({}, ("loss.stress=3",), 3.0),
        ({}, ("loss.kind=mse", "loss.forces=0"), 0.0),
        ({"stress": None}, (), 0.0),
        ({"pbc": np.array([True, True, False])}, (), 0.0),
        ({"stress": None}, ("loss.stress=3",), 3.0),
    ],
)
def test_stress_is_trained_where_it_is_known(changes, options, expected):
    """auto: a stress times the volume of an atom weighs as a force."""
    loss, frames = config(*options).loss, data("ammonia-train", **changes)
    weights = lambdas(loss, frames)
    volumes = [abs(np.linalg.det(f.cell)) / len(f.numbers) for f in frames.frames]  # equal sizes
    auto = loss.forces * np.mean(volumes) ** 2
    assert weights.stress == pytest.approx(auto if expected is True else expected)
    assert weights.stress == 0 or expected is not True or weights.stress > 1000


def test_squared_errors_carry_their_options():
    loss = config("loss.kind=mse", "loss.robust=huber", "loss.forces=7").loss
    weights = lambdas(loss, data("ammonia-train", stress=None))
    likelihood = likelihoods(loss, weights)(0)
    assert isinstance(likelihood, SquaredError)
    assert (likelihood.robust, likelihood.lambdas) == ("huber", weights)
    assert weights == Lambdas(1, 7, 0)
    assert noise_spec(loss).kind == "none"


def test_the_warm_up_ends():
    loss = config("loss.warmup_epochs=3", "loss.beta=0.5").loss
    at = likelihoods(loss, Lambdas(1, 100, 0))
    assert all(isinstance(at(epoch), GaussianNoise) for epoch in range(5))
    assert [at(epoch).warmup for epoch in range(5)] == [True, True, True, False, False]
    assert at(4).beta == 0.5


@pytest.mark.parametrize(("kind", "noise"), [("nll_e", "energy"), ("nll_jef", "joint")])
def test_likelihoods_ask_for_their_noise(kind, noise):
    loss = config(f"loss.kind={kind}", "loss.covariance=cholesky").loss
    assert noise_spec(loss).kind == noise
    assert noise_spec(loss).covariance == "cholesky"


@pytest.mark.parametrize(
    ("name", "kind"), [("constant", Constant), ("plateau", Plateau), ("cosine", WarmupCosine)]
)
def test_schedules_by_name(name, kind):
    assert isinstance(train_settings(config(f"train.schedule={name}")).schedule, kind)


@pytest.mark.parametrize(
    ("changes", "short", "usual", "long"),
    [
        ((), 0.01, 0.002, 0.001),
        (("train.lr=0.005",), 0.005, 0.005, 0.005),
        (("train.schedule=constant",), 0.002, 0.002, 0.002),
        (("train.optimiser=soap",), 0.002, 0.002, 0.002),
    ],
)
def test_the_learning_rate_follows_the_length(changes, short, usual, long):
    optimiser = train_settings(config(*changes)).optimiser
    rates = [peak_rate(optimiser, steps=steps) for steps in (100, 32_400, 4 * 32_400)]
    assert rates == pytest.approx([short, usual, long], rel=1e-12)


@pytest.mark.parametrize("monitor", MONITORS)
def test_every_monitor_can_be_configured(monitor):
    assert train_settings(config(f"train.monitor={monitor}")).monitor == monitor


def test_settings_follow_the_configuration():
    settings = train_settings(config("train.max_time=2m", "seed=5"), stress=True)
    assert (settings.max_time, settings.seed, settings.stress) == (120, 5, True)
    assert settings.device in ("cpu", "cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(ConfigError, match=r"train\.device: 'cuda', but torch sees no GPU"):
        train_settings(config("train.device=cuda"))


def test_label_keys():
    keys = label_keys(config("data.energy_key=REF_energy", "data.virial_key=v").data)
    assert keys.configured() == ("REF_energy", "v")
