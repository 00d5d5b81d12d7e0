"""The whole configuration as frozen sections; those of methods are the methods' own options.

Every field says what it means and in which unit; `bayrace schema` and `bayrace template` are
written from these descriptions. Fields of `model` left out are filled from the preset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from bayrace.calibrate import RECALIBRATIONS
from bayrace.config.choice import Choice, choice
from bayrace.config.data import DataConfig
from bayrace.config.docstrings import described
from bayrace.config.fields import (
    Folder,
    Seconds,
    Sinks,
)
from bayrace.config.model import ModelConfig
from bayrace.config.presets import fill_run
from bayrace.config.section import Section
from bayrace.config.target import TargetConfig, named_target
from bayrace.posterior import POSTERIORS
from bayrace.train.monitors import Monitor
from bayrace.train.settings import Rehearsal

described(Rehearsal)
if TYPE_CHECKING:
    PosteriorConfig = Choice
    CalibrateConfig = Choice
else:
    PosteriorConfig = choice("PosteriorConfig", POSTERIORS, default="distance")
    CalibrateConfig = choice("CalibrateConfig", RECALIBRATIONS, default="scale", optional=True)


class LossConfig(Section):
    """What training minimises."""

    kind: Literal["mse", "nll_e", "nll_jef", "shallow"] = Field(
        default="nll_jef",
        description="mse: no noise model; nll_e: energy variance; nll_jef: energy variance and a "
        "3×3 force covariance of every atom; shallow: the spread of a shallow ensemble.",
    )
    energy: float = Field(default=1.0, ge=0, description="λ_E, weight of the energy term.")
    forces: float = Field(default=100.0, ge=0, description="λ_F, weight of the forces term.")
    stress: Literal["auto"] | Annotated[float, Field(ge=0)] = Field(
        default="auto",
        description="λ_S, weight of the stress term; 0: stress is not trained. auto: λ_F times the "
        "square of the volume per atom, Å³, where periodic training structures have a stress.",
    )
    per_atom_energy: bool = Field(
        default=False, description="Divide energy errors by the number of atoms."
    )
    robust: Literal["none", "huber", "l1"] = Field(
        default="none",
        description="mse: squares of errors (none), Huber's function, or absolute values (l1).",
    )
    huber_delta: float = Field(
        default=0.01,
        gt=0,
        description="robust: huber: errors from which on the loss is linear, eV and eV/Å.",
    )
    beta: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="nll: β of the β-NLL, against early variance collapse; 0 is the plain one.",
    )
    warmup_epochs: int = Field(
        default=0, ge=0, description="Epochs of plain mse before the likelihood starts."
    )
    refit_epochs: int = Field(
        default=5,
        ge=0,
        description="nll: epochs after training that fit the noise heads alone to the errors that "
        "are left; 0: none. They come on top of max_time.",
    )
    energy_noise: Literal["extensive", "mean_log"] = Field(
        default="extensive",
        description="Energy variance: sum over atoms (extensive) or exp of a mean (mean_log).",
    )
    covariance: Literal["equivariant", "cholesky"] = Field(
        default="equivariant",
        description="Force covariance: equivariant turns with the molecule; cholesky (as in the "
        "paper) does not.",
    )
    stress_noise: bool = Field(
        default=False, description="Also learn a 6×6 covariance of the stress."
    )

    @model_validator(mode="after")
    def _consistent(self) -> LossConfig:
        if self.kind == "mse":
            return self
        if self.per_atom_energy or self.robust != "none":
            raise ValueError(
                f"per_atom_energy and robust belong to kind mse, not to {self.kind}: a likelihood "
                "weighs errors by the noise it learns; leave them out or use kind: mse"
            )
        learned = {"energy": True, "forces": self.kind == "nll_jef", "stress": self.stress_noise}
        for name, noisy in learned.items():
            if noisy and getattr(self, name) == 0:  # σ² is divided by λ, docs/theory.md, Losses
                raise ValueError(
                    f"{name} has weight 0, but {self.kind} learns its noise; give it a weight "
                    "above 0, or choose a kind that does not: nll_e without forces, mse without "
                    "energies"
                )
        return self


class TrainConfig(Section):
    """How it is minimised."""

    optimiser: Literal["muon", "soap", "amsgrad", "adamw"] = Field(
        default="muon",
        description="muon: matrices move alike in all directions; soap: Adam in the eigenbasis of "
        "the gradients; both with AdamW for the rest; amsgrad, as in the paper; adamw.",
    )
    lr: Literal["auto"] | Annotated[float, Field(gt=0)] = Field(
        default="auto",
        description="Highest learning rate. auto: 0.002; of muon with the cosine schedule "
        "0.002 * sqrt(32400 / steps of the training), at most 0.01. Half of it from pretrained "
        "weights (model.start).",
    )
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay.")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999),
        description="Parts of the means of gradient and squared gradient that a step keeps.",
    )
    momentum: float = Field(
        default=0.95,
        ge=0,
        lt=1,
        description="muon: memory of the gradient; soap: of its covariance.",
    )
    eps: float = Field(
        default=1e-8,
        ge=0,
        description="Added to the root of the mean squared gradient, by which steps are divided.",
    )
    schedule: Literal["plateau", "cosine", "constant"] = Field(
        default="cosine",
        description="How the learning rate falls; cosine ends with max_epochs or max_time.",
    )
    plateau_factor: float = Field(
        default=0.8, gt=0, lt=1, description="plateau: multiply the rate by this at a plateau."
    )
    plateau_patience: int = Field(
        default=10, ge=0, description="plateau: validations without improvement before that."
    )
    plateau_threshold: float = Field(
        default=1e-4, ge=0, description="plateau: relative improvement that counts as one."
    )
    min_lr: float = Field(default=1e-6, ge=0, description="plateau: lowest learning rate.")
    cosine_warmup: int = Field(
        default=100,
        ge=0,
        description="cosine: first steps, in which the learning rate rises linearly.",
    )
    cosine_floor: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="cosine: last rate as a fraction of lr; it is "
        "reached at max_epochs or at max_time, whichever comes first.",
    )
    cooldown: bool = Field(
        default=True,
        description="cosine: where a fifth of the run brings no better validation, go back to the "
        "best weights, let the rate fall from there, and end.",
    )
    batch_size: int = Field(default=5, ge=1, description="Structures per step.")
    edge_budget: int | None = Field(
        default=None,
        gt=0,
        description="Mean edges per step, in place of batch_size where sizes of structures differ.",
    )
    valid_batch_size: int = Field(default=20, ge=1, description="Structures per validation batch.")
    max_epochs: int = Field(default=1000, ge=1, description="Passes over the training data.")
    layers: Literal["all", "last"] = Field(
        default="all",
        description="What is trained of a network that starts from trained weights: all of it, or "
        "its last layer alone.",
    )
    rehearse: Rehearsal | None = Field(
        default=None, description="Frames that an epoch need not have; null: every epoch has all."
    )
    max_time: Seconds | None = Field(
        default=None, description="Stop after this much training: 30m, 2h, seconds; null: never."
    )
    max_gradient_norm: float | None = Field(
        default=10.0, gt=0, description="Largest global norm of the gradient; null: no limit."
    )
    ema: float | None = Field(
        default=0.99, ge=0, lt=1, description="Decay of the averaged parameters; null: no average."
    )
    valid_every: int = Field(default=1, ge=1, description="Epochs between validations.")
    monitor: Monitor = Field(
        default="auto",
        description="Validation number that decides which parameters are best; auto: MAE of "
        "forces, or of energies where there are no forces.",
    )
    early_stopping: int | None = Field(
        default=None,
        ge=1,
        description="Stop after this many validations without improvement; null: never.",
    )
    min_improvement: float = Field(
        default=1e-4, ge=0, description="early_stopping: relative change that is an improvement."
    )
    checkpoint_every: Seconds = Field(
        default=60.0,
        description="Time between checkpoints within an epoch: 60 (seconds), 5m; each validation "
        "writes one too.",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto, cpu, cuda or cuda:1; auto takes a GPU where there is one.",
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; null leaves them as they are."
    )


class Config(Section):
    """Everything one training run needs."""

    seed: int = Field(
        default=0, ge=0, description="Seed of the initial weights, the batches and the split."
    )
    output: Folder = Field(
        default="runs/bayrace", min_length=1, description="Folder of the run; created."
    )
    data: DataConfig = Field(description="Which structures to learn from.")
    target: Annotated[TargetConfig, BeforeValidator(named_target)] = Field(
        default=TargetConfig(), description="What is learnt of a structure."
    )
    model: ModelConfig = Field(
        default={},  # filled from the preset
        validate_default=True,
        description="The network.",
    )
    loss: LossConfig = Field(default=LossConfig(), description="What training minimises.")
    train: TrainConfig = Field(default=TrainConfig(), description="How it is minimised.")
    posterior: PosteriorConfig = Field(
        default_factory=PosteriorConfig, description="Distribution over weights."
    )
    calibrate: CalibrateConfig = Field(
        default_factory=CalibrateConfig,
        description="Make σ agree with the errors on the validation set after training; none: "
        "leave it as it is.",
    )
    log: Sinks = Field(
        default=(),
        description="Where to draw the training besides history.jsonl: tensorboard, wandb, both.",
    )

    _fill = model_validator(mode="before")(fill_run)

    @model_validator(mode="after")
    def _property_has_no_forces(self) -> Config:
        loss, target = self.loss, self.target
        stressed = loss.stress not in ("auto", 0)
        if target.name != "energy" and (loss.kind == "nll_jef" or loss.forces or stressed):
            raise ValueError(
                f"target {target.name} has no forces: leave loss.forces and loss.stress out, and "
                f"use loss.kind nll_e or mse, not {loss.kind}"
            )
        return self

    @model_validator(mode="after")
    def _has_its_loss(self) -> Config:
        needed = self.posterior.method.loss
        if needed is not None and self.loss.kind != needed:
            raise ValueError(
                f"posterior {self.posterior.kind} with loss {self.loss.kind}: it has its own loss, "
                f"{needed}; leave loss.kind out"
            )
        if needed is None and self.loss.kind == "shallow":
            raise ValueError(
                f"posterior {self.posterior.kind} with loss {self.loss.kind}: a shallow ensemble "
                "has its own loss; set posterior: shallow and leave loss.kind out"
            )
        return self
