"""Configuration of `bayrace active`: explore, select, label, train further, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, create_model, model_validator

from bayrace.config.active import Name, SelectConfig, TuneConfig
from bayrace.config.data import DataConfig
from bayrace.config.docstrings import described
from bayrace.config.fields import Folder, NamedPaths, Paths
from bayrace.config.load import make_config, plain_values_of
from bayrace.config.model import ModelConfig
from bayrace.config.options import keys_from, made_of
from bayrace.config.oracle import LabelConfig, OracleConfig
from bayrace.config.presets import fill_run
from bayrace.config.schema import (
    CalibrateConfig,
    Config,
    LossConfig,
    PosteriorConfig,
    TrainConfig,
)
from bayrace.config.section import Section
from bayrace.simulate.dynamics import DynamicsSettings
from bayrace.simulate.stop import StopRule

TRAINING = ("data", "model", "loss", "train", "posterior")
"""Sections of the first training; an existing potential has been through it."""


described(StopRule)


class ExploreBase(Section):
    """Dynamics from several structures at several temperatures."""

    starts: Paths | None = Field(
        default=None, description="Structures to start from; null: those of the training."
    )
    structures: Annotated[int, Field(ge=1)] | None = Field(
        default=4, description="Starts drawn at random in every round; null: all of them."
    )
    restart_fraction: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Part of the drawn structures that is replaced by labels of earlier rounds, so "
        "that exploration goes on from where it came.",
    )
    temperatures: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] = Field(
        default=(300.0, 600.0, 1000.0),
        description="Temperatures, K; every structure is simulated at each.",
    )
    repeats: int = Field(default=1, ge=1, description="Runs of each structure and temperature.")
    steps: int = Field(default=2000, ge=1, description="Steps of a run that nothing stops.")
    min_steps: int = Field(
        default=20,
        ge=0,
        description="Steps before the rule may stop a run, so that something new is met even where "
        "the start is uncertain.",
    )
    every: int = Field(default=20, ge=1, description="Steps between structures of the pool.")
    uncertainty_every: int = Field(
        default=5, ge=1, description="Steps between evaluations of the uncertainty."
    )
    rule: StopRule | None = Field(
        default=StopRule(), description="What uncertain means; null: runs go on to their end."
    )
    workers: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Runs at a time; null: one per core."
    )

    @model_validator(mode="after")
    def _looks_where_it_keeps(self) -> Self:
        if self.every % self.uncertainty_every:
            raise ValueError(
                f"every {self.every} is no multiple of uncertainty_every {self.uncertainty_every}, "
                "and only what is looked at can be kept; change one of them"
            )
        return self


if TYPE_CHECKING:
    ExploreConfig = ExploreBase
else:
    _OWN = ("temperature", "seed", "steps", "uncertainty_every")
    ExploreConfig = create_model(
        "ExploreConfig",
        __base__=ExploreBase,
        **keys_from(DynamicsSettings, without=_OWN, defaults={"ensemble": "nvt"}),
    )


class LoopSelectConfig(SelectConfig):
    """What is labelled of all that was visited."""

    by: Name = Field(default="bald-ef", description="How to choose, as in bayrace select.")
    budget: int = Field(default=10, ge=1, description="Labels of a round.")
    valid: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Part of the new labels that joins the validation set, so that the calibration "
        "knows them; they are labels like all others.",
    )


class StopConfig(Section):
    """When it is enough: whichever comes first; null: never for this reason."""

    labels: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Labels paid for, those of the start not counted."
    )
    error: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="RMSE of forces, eV/Å: of the worst test set; without one, of the newest "
        "labels before they are trained on.",
    )
    rounds: Annotated[int, Field(ge=0)] | None = Field(
        default=10, description="Largest number of rounds."
    )
    uncertain: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=0.0,
        description="Part of the runs that met an uncertain structure: no more than this.",
    )


def _filled(raw: Any) -> Any:
    """Presets under the sections of the training; ensembles unless another posterior is named."""
    if not isinstance(raw, Mapping):
        return raw
    given = [name for name in TRAINING if raw.get(name) is not None]
    if raw.get("potential") is not None:
        if given:
            raise ValueError(
                f"{', '.join(given)}: of no use with potential, which is trained already; leave "
                "out one or the other"
            )
        return raw
    return fill_run({"posterior": "ensemble"} | dict(raw))


class LoopConfig(Section):
    """Active learning from labelled structures, or from a potential."""

    seed: int = Field(default=0, ge=0, description="Seed of everything that is random.")
    output: Folder = Field(default="runs/active", min_length=1, description="Folder of the loop.")
    potential: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Potential to start from; null: one is trained first."
    )
    data: DataConfig | None = Field(default=None, description="Labelled structures to start from.")
    model: ModelConfig = Field(
        default={},  # filled from the preset
        validate_default=True,
        description="The network.",
    )
    loss: LossConfig = Field(default=LossConfig(), description="What training minimises.")
    train: TrainConfig = Field(default=TrainConfig(), description="The first training.")
    posterior: PosteriorConfig = Field(
        default_factory=PosteriorConfig, description="Distribution over weights; default: ensemble."
    )
    test: NamedPaths = Field(
        default={}, description="Labelled test files, as {name: path} or a list."
    )
    explore: ExploreConfig = Field(
        default=ExploreConfig(), description="How new structures are looked for: dynamics."
    )
    select: LoopSelectConfig = Field(default=LoopSelectConfig(), description="What is labelled.")
    oracle: OracleConfig = Field(
        default_factory=OracleConfig, description="What labels structures."
    )
    label: LabelConfig = Field(default=LabelConfig(), description="How labels are computed.")
    tune: TuneConfig = Field(default=TuneConfig(), description="How members learn from labels.")
    calibrate: CalibrateConfig = Field(
        default_factory=CalibrateConfig,
        description="Make σ agree with the errors on the validation set, after every training.",
    )
    stop: StopConfig = Field(default=StopConfig(), description="When it is enough.")
    workers: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Members trained at a time; null: one per core."
    )
    pin: bool = Field(default=True, description="Keep each member to its own core.")

    _fill = model_validator(mode="before")(_filled)

    @model_validator(mode="after")
    def _consistent(self) -> LoopConfig:
        if self.potential is None and self.data is None:
            raise ValueError("give data.train, or a potential to start from")
        if self.data is not None and self.data.test:
            raise ValueError("data.test: name test files under test, beside data")
        if self.potential is None:
            self._knows_enough()
        stop = self.stop
        if stop.labels is None and stop.error is None and stop.rounds is None:
            raise ValueError("stop: give labels, error or rounds, or it may never end")
        return self

    def _knows_enough(self) -> None:
        """Refuse what would turn out after the first training: uncertainties that are missing."""
        if self.posterior.kind != "point":
            return
        if self.select.by.startswith("bald"):
            raise ValueError(
                f"select.by {self.select.by} asks what weights do not know, and posterior point "
                "has but one; use posterior: ensemble, or select.by: variance"
            )
        if self.loss.kind == "mse" and (self.explore.rule or self.calibrate.kind != "none"):
            raise ValueError(
                "loss mse with posterior point predicts no uncertainty; use posterior: ensemble, "
                "or explore.rule: null and calibrate: none"
            )

    def training(self, output: str) -> Config:
        """The configuration of the first training."""
        whole = plain_values_of(self)
        sections = {name: whole[name] for name in (*TRAINING, "calibrate")}
        first = {"seed": self.seed, "output": output}
        return make_config({**first, **sections}, source="loop")


def dynamics_settings(config: ExploreConfig, *, seed: int) -> DynamicsSettings:
    """What simulations are told; `explore.plan` puts temperatures and further seeds in."""
    return made_of(DynamicsSettings, config, temperature=config.temperatures[0], seed=seed)
