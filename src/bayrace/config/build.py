"""From names in the configuration to the modules that do the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast

from bayrace.config.data import DataConfig
from bayrace.config.load import ConfigError
from bayrace.config.schema import Config, LossConfig, TrainConfig
from bayrace.config.target import TargetConfig
from bayrace.core.protocols import Likelihood, ModelSpec
from bayrace.data.dataset import Dataset
from bayrace.data.read import LabelKeys
from bayrace.likelihood.gaussian import GaussianNoise
from bayrace.likelihood.mse import SquaredError
from bayrace.models import MODELS
from bayrace.models.noise import Lambdas, NoiseSpec
from bayrace.potential.potential import PotentialError, resolve_device
from bayrace.train.adam import AdamSettings
from bayrace.train.muon import MuonSettings
from bayrace.train.optim import Optimiser
from bayrace.train.schedule import Constant, Plateau, Schedule, WarmupCosine
from bayrace.train.settings import TrainSettings
from bayrace.train.soap import SoapSettings

_NOISE_KINDS: dict[str, Literal["none", "energy", "joint", "shallow"]] = {
    "mse": "none",
    "nll_e": "energy",
    "nll_jef": "joint",
    "shallow": "shallow",
}

_LR, _STEPS = 0.002, 32_400  # lr: auto, and the length of the trainings that it was chosen with
_GENTLER = 0.5  # times that from pretrained weights, which should not be forgotten


def label_keys(data: DataConfig, target: TargetConfig | None = None) -> LabelKeys:
    """Where the labels of the data files are; `target`: of another property than the energy."""
    other = target is not None and target.name != "energy"
    return LabelKeys(
        energy=target.label_key if target and other else data.energy_key,
        forces=data.forces_key,
        stress=data.stress_key,
        virial=data.virial_key,
        config_type=data.config_type_key,
        forces_too=not other,
    )


def split_seed(config: Config) -> int:
    """Of the draw of validation structures."""
    return config.seed if config.data.split_seed is None else config.data.split_seed


def lambdas(loss: LossConfig, train: Dataset) -> Lambdas:
    """Weights of the quadratic terms; that of the stress may follow from the training set.

    A stress times the volume of an atom is an energy; over 1 Å it is a force, and weighs as one.
    """
    stress = loss.stress
    if stress == "auto":
        stress = loss.forces * train.stressed_volume() ** 2
    return Lambdas(energy=loss.energy, forces=loss.forces, stress=stress)


def noise_spec(loss: LossConfig, *, members: int = 0) -> NoiseSpec:
    """The noise the model has to predict; `members` are those of a shallow ensemble."""
    kind = _NOISE_KINDS[loss.kind]
    return NoiseSpec(
        kind=kind,
        energy=loss.energy_noise,
        covariance=loss.covariance,
        stress=loss.stress_noise and kind == "joint",
        members=members if kind == "shallow" else 0,
    )


def likelihoods(
    loss: LossConfig, weights: Lambdas, *, members: int = 0
) -> Callable[[int], Likelihood]:
    """The loss of each epoch, counted from 0; `members` are those of a shallow ensemble."""
    if loss.kind == "mse":
        squares = SquaredError(weights, loss.per_atom_energy, loss.robust, loss.huber_delta)
        return lambda _: squares
    noise = noise_spec(loss, members=members)
    late = GaussianNoise(noise, weights, beta=loss.beta, warmup=False)
    early = replace(late, warmup=True)
    return lambda epoch: early if epoch < loss.warmup_epochs else late


def model_spec(config: Config, train: Dataset) -> ModelSpec:
    """The network, with the statistics of the training set."""
    options = config.model
    noise = noise_spec(config.loss, members=shallow_members(config))
    kind = cast("Any", MODELS.find(options.kind))
    spec: ModelSpec = kind.of(options, train, noise=noise, target=config.target.build())
    return spec


def shallow_members(config: Config) -> int:
    """Of a shallow ensemble; 0 for other losses."""
    return config.posterior.method.members if config.loss.kind == "shallow" else 0


def train_settings(
    config: Config, *, stress: bool = False, pretrained: bool = False
) -> TrainSettings:
    """What the training loop is told.

    `stress`: whether it is predicted and trained; `pretrained`: whether the first weights are.
    """
    train = config.train
    return TrainSettings(
        optimiser=_optimiser(train, rate=_LR * _GENTLER if pretrained else _LR),
        schedule=_schedule(train),
        batch_size=train.batch_size,
        edge_budget=train.edge_budget,
        valid_batch_size=train.valid_batch_size,
        max_epochs=train.max_epochs,
        max_time=train.max_time,
        max_gradient_norm=train.max_gradient_norm,
        ema=train.ema,
        valid_every=train.valid_every,
        early_stopping=train.early_stopping,
        min_improvement=train.min_improvement,
        monitor=_monitor(config),
        stress=stress,
        checkpoint_every=train.checkpoint_every,
        seed=config.seed,
        dtype=config.model.dtype,
        device=_device(train.device),
        rehearsal=train.rehearse,
        cooldown=train.cooldown,
    )


def _monitor(config: Config) -> str:
    """Forces that nobody trains say nothing."""
    untrained = config.train.monitor == "auto" and config.loss.forces == 0
    return "energy_mae" if untrained else config.train.monitor


def _optimiser(train: TrainConfig, *, rate: float) -> Optimiser:
    """With this learning rate where none is given."""
    auto = train.lr == "auto"
    rate = rate if train.lr == "auto" else train.lr
    adam = AdamSettings("adamw", rate, train.weight_decay, train.betas, train.eps)
    match train.optimiser:
        case "muon":
            usual = _STEPS if auto and train.schedule == "cosine" else None
            return MuonSettings(adam, momentum=train.momentum, usual_steps=usual)
        case "soap":
            return SoapSettings(adam, memory=train.momentum)
        case name:
            return replace(adam, name=name)


def _schedule(train: TrainConfig) -> Schedule:
    if train.schedule == "constant":
        return Constant()
    if train.schedule == "cosine":
        return WarmupCosine(warmup=train.cosine_warmup, floor=train.cosine_floor)
    return Plateau(
        factor=train.plateau_factor,
        patience=train.plateau_patience,
        threshold=train.plateau_threshold,
        minimum=train.min_lr,
    )


def _device(name: str) -> str:
    try:
        return str(resolve_device(name))
    except PotentialError as error:
        raise ConfigError(str(error).replace("device=", "train.device: ", 1)) from None
