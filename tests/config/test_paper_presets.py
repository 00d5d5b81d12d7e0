"""Presets named after the paper against its hyper-parameters, typed from docs/theory.md."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from bayrace.config import make_config
from bayrace.config.presets import PRESET_NAMES
from bayrace.config.schema import Config, LossConfig, TrainConfig
from bayrace.models.race.presets import PRESETS
from bayrace.nn.covariance import CHOLESKY_JITTER
from bayrace.nn.irreps import parse_irreps

# r_c, n̄, batch, epochs, λ_F, channels of degrees 0, 1, ... (both parities), F, L_max, loss, lr
TABLE: dict[str, tuple[Any, ...]] = {
    "qm9": (5.0, 28.0, 64, 2000, 0.0, (64, 64, 64), 128, 2, "mse", 0.01),
    "psb3": (6.0, 13.0, 5, 2000, 50.0, (64, 64, 64), 64, 2, "mse", 0.01),
    "rmd17": (5.0, "auto", 5, 10_000, 1000.0, (64, 64, 64, 64), 128, 3, "nll_jef", 0.01),
    "3bpa": (6.0, 26.0, 2, 5000, 100.0, (64, 64, 64, 64), 128, 2, "nll_jef", 0.01),
    "obn25": (3.0, 19.0, 2, 1000, 1.0, (32, 16, 8), 128, 2, "nll_jef", 0.1),
}
OURS = ("tiny", "small", "medium")


def configured(preset: str, **sections: Any) -> Config:
    return make_config({"data": {"train": "a.xyz"}, "model": {"preset": preset}, **sections})


def test_every_preset_is_ours_or_in_the_table() -> None:
    assert {*TABLE, *OURS} == set(PRESET_NAMES) == set(PRESETS)


@pytest.mark.parametrize("preset", TABLE)
def test_values_are_those_of_the_paper(preset: str) -> None:
    cutoff, neighbours, batch, epochs, forces, channels, features, l_max, kind, lr = TABLE[preset]
    config = configured(preset)
    model, loss, train = config.model, config.loss, config.train
    assert (model.cutoff, model.mean_neighbours) == (cutoff, neighbours)
    assert (train.batch_size, train.max_epochs) == (batch, epochs)
    assert (loss.energy, loss.forces, loss.kind) == (1.0, forces, kind)
    irreps = {f"{irrep}": count for irrep, count in parse_irreps(model.hidden).items()}
    assert irreps == {f"{l}{p}": n for l, n in enumerate(channels) for p in "eo"}  # noqa: E741
    assert (model.features, model.l_max, model.layers, model.radial_basis) == (
        features,
        l_max,
        5,
        8,
    )
    assert (train.optimiser, train.lr, train.schedule) == ("amsgrad", lr, "plateau")
    assert (train.plateau_factor, train.plateau_patience, train.ema) == (0.9, 50, 0.99)
    assert (loss.covariance, loss.beta, loss.refit_epochs) == ("cholesky", 0.0, 0)
    assert CHOLESKY_JITTER == 1e-6


@pytest.mark.parametrize("preset", TABLE)
def test_the_network_has_nothing_beyond_the_paper(preset: str) -> None:
    model = configured(preset).model
    beyond = (model.gate, model.self_contraction, model.pair_radial, model.normalise)
    assert not any(beyond)
    assert (model.radial_knots, model.radial_hidden, model.readout_hidden) == (0, (64, 64, 64), 64)
    assert (model.envelope_power, model.neighbour_norm, model.activation) == (2, "sqrt", "identity")


FREE = {  # keys that change nothing that is learnt, or belong to what these presets leave off
    "train": {
        "checkpoint_every",
        "device",
        "threads",
        "valid_batch_size",
        "rehearse",
        "layers",
        "min_improvement",
    },
    "loss": {"huber_delta"},
}


@pytest.mark.parametrize("preset", TABLE)
def test_our_defaults_do_not_leak_in(preset: str) -> None:
    """Whatever our defaults become, these presets have said it before."""
    inactive = {name for name in TrainConfig.model_fields if name.startswith("cosine_")}
    inactive.add("momentum")  # of Muon and SOAP
    for section, kind in (("train", TrainConfig), ("loss", LossConfig)):
        silent = set(kind.model_fields) - set(PRESETS[preset][section]) - FREE[section] - inactive
        assert not silent, f"{preset}: {section} leaves {sorted(silent)} to our defaults"
    names = {field.name for field in fields(configured(preset).model)} - {"preset", "kind"}
    assert names == set(PRESETS[preset]["model"])


@pytest.mark.parametrize("preset", TABLE)
def test_race_la_is_a_sampled_diagonal_by_the_evidence(preset: str) -> None:
    config = configured(preset, posterior="laplace", loss={"kind": "mse"})
    laplace = config.posterior.laplace
    assert config.posterior.kind == "laplace"
    assert (laplace.structure, laplace.predictive, laplace.noise) == (
        *("diagonal", "sampled"),
        "evidence",
    )
    assert laplace.prior_precision is None  # by the evidence too
    changed = configured(preset, posterior={"laplace": {"samples": 5}}).posterior
    assert (changed.kind, changed.laplace.samples) == ("point", 5)
    assert changed.laplace.structure == "diagonal"
    assert configured("small").posterior.laplace.structure == "last_layer"


@pytest.mark.parametrize("preset", TABLE)
def test_other_posteriors_of_the_paper(preset: str) -> None:
    posterior = configured(preset).posterior
    assert (posterior.ensemble.members, posterior.swag.samples, posterior.swag.scaling) == (
        *(10, 30),
        "paper",
    )
    ivon = posterior.ivon
    assert (ivon.ess, ivon.hess_init, ivon.lr, ivon.clip_radius) == ("structures", 0.5, 0.05, 1.0)
    assert ivon.betas == (0.9, 0.999995)
    assert (ivon.hessian, ivon.samples, ivon.start) == ("paper", 16, 0.0)
    assert ivon.weight_decay > 0
    assert math.isfinite(ivon.weight_decay)
