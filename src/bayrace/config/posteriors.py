"""The section `posterior` of the configuration: a distribution over weights and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from bayrace.config.section import Section

Kind = Literal["distance", "point", "ensemble", "swag", "ivon", "laplace", "llpr", "shallow"]
_Beta = Annotated[float, Field(ge=0, lt=1)]


class DistanceConfig(Section):
    """How far environments are from those of the training data: no retraining, no extra passes."""

    power: float = Field(
        default=1.3,
        ge=1,
        le=2,
        description="Variances of forces and stress grow with this power of the squared distance "
        "from the data.",
    )
    energy_power: float = Field(
        default=1.5, ge=1, le=2, description="The same for the variance of the energy."
    )
    regularisation: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Least variance of a feature that counts, in units of the mean of all; null: "
        "by the validation errors.",
    )


class EnsembleConfig(Section):
    """Independent trainings."""

    members: int = Field(default=10, ge=2, description="Trainings with different seeds.")


class SwagConfig(Section):
    """A Gaussian from the tail of training, which goes on for it."""

    lr: float = Field(default=0.001, gt=0, description="Constant learning rate of the tail.")
    epochs: int = Field(default=40, ge=2, description="Epochs of the tail.")
    burn_in: int = Field(default=5, ge=0, description="Epochs before the first snapshot.")
    every: int = Field(default=1, ge=1, description="Epochs between snapshots.")
    rank: int = Field(default=20, ge=2, description="K, snapshots in the low-rank part.")
    scaling: Literal["maddox", "paper"] = Field(
        default="maddox",
        description="maddox: half the diagonal and half the low-rank part; paper: all of the "
        "latter.",
    )
    samples: int = Field(default=30, ge=1, le=10_000, description="Weight samples of a prediction.")
    start: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None,
        description="Take snapshots of the training itself, from this fraction of its epochs on, "
        "as the paper does; lr, epochs and burn_in do not count then. null: of a tail.",
    )


class IvonConfig(Section):
    """Variational training: replaces the optimiser."""

    lr: float = Field(default=0.05, gt=0, description="Learning rate at the start.")
    ess: Literal["structures", "atoms"] | Annotated[float, Field(gt=0)] = Field(
        default=1e5,
        description="Effective sample size: a number, or that of the training set: structures "
        "(the theory, but so hot that small sets diverge) or atoms.",
    )
    hess_init: float = Field(default=0.5, gt=0, description="Hessian before the first step.")
    betas: tuple[_Beta, _Beta] = Field(
        default=(0.9, 0.999995), description="Memory of the gradient and of the Hessian."
    )
    weight_decay: float = Field(default=1e-4, gt=0, description="δ: prior precision / ess.")
    clip_radius: float = Field(
        default=1.0, gt=0, description="Largest change of a weight, in learning rates."
    )
    hessian: Literal["averaged", "paper"] = Field(
        default="averaged",
        description="averaged: a mean over the run that forgets its start; paper: by betas.",
    )
    samples: int = Field(default=16, ge=1, le=10_000, description="Weight samples of a prediction.")
    fisher: int = Field(
        default=1000,
        ge=0,
        description="averaged: training structures, drawn again and again, whose Fisher "
        "information gives the variances after training; 0: those of the training itself.",
    )


class LaplaceConfig(Section):
    """A Gaussian around trained weights, by their curvature."""

    structure: Literal["diagonal", "last_layer"] = Field(
        default="last_layer",
        description="diagonal: of all weights, independent; last_layer: those of the last layer, "
        "correlated.",
    )
    predictive: Literal["glm", "sampled"] = Field(
        default="glm", description="glm: linearised, in closed form; sampled: by weight samples."
    )
    samples: int = Field(
        default=16, ge=1, le=10_000, description="Weight samples of a sampled prediction."
    )
    probes: Annotated[int, Field(ge=1)] | None = Field(
        default=4,
        description="diagonal: random signs per structure that estimate the curvature of forces; "
        "null: every component, exactly.",
    )
    prior_precision: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="τ; null: by the marginal likelihood."
    )
    noise: Literal["auto", "evidence", "residuals"] = Field(
        default="auto",
        description="Whence the noise of models without noise heads: the marginal likelihood, the "
        "training errors, or the former where it is sound.",
    )
    energy_noise: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="σ of energies, eV; null: the model's, or as `noise` says."
    )
    forces_noise: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="σ of force components, eV/Å; null: as for energies."
    )


class LlprConfig(Section):
    """Last-layer prediction rigidity: no retraining."""

    regularisation: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="ς in units of the mean eigenvalue; null: by the validation errors.",
    )
    force_rows: Annotated[int, Field(ge=0)] | None = Field(
        default=4000,
        description="Random sums of training forces that count beside the energies, each a pass "
        "of one structure; 0: energies alone; null: every component, exactly.",
    )
    force_samples: int = Field(
        default=0,
        ge=0,
        description="Random directions for force covariances, each a backward pass; 0: all, "
        "exactly.",
    )


class ShallowConfig(Section):
    """Members that share all but the last layer."""

    members: int = Field(default=16, ge=2, description="Energies of the network.")


class PosteriorConfig(Section):
    """A distribution over weights; `posterior: llpr` is short for its kind."""

    kind: Kind = Field(
        default="distance",
        description="distance: how far atoms are from the training data, by what the network has "
        "learnt. point: none. ensemble: several trainings. swag: tail of the training. ivon: "
        "variational training. laplace, llpr: after training. shallow: members share all but the "
        "last layer.",
    )
    distance: DistanceConfig = Field(default=DistanceConfig(), description="kind distance.")
    ensemble: EnsembleConfig = Field(default=EnsembleConfig(), description="kind ensemble.")
    swag: SwagConfig = Field(default=SwagConfig(), description="kind swag.")
    ivon: IvonConfig = Field(default=IvonConfig(), description="kind ivon.")
    laplace: LaplaceConfig = Field(default=LaplaceConfig(), description="kind laplace.")
    llpr: LlprConfig = Field(default=LlprConfig(), description="kind llpr.")
    shallow: ShallowConfig = Field(default=ShallowConfig(), description="kind shallow.")


def named_kind(raw: Any) -> Any:
    """`posterior: swag` as the section {kind: swag}."""
    return {"kind": raw} if isinstance(raw, str) else raw


def shallow_loss(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Shallow ensembles have a loss of their own, which need not be named."""
    filled = dict(raw)
    posterior, loss = named_kind(raw.get("posterior", {})), raw.get("loss", {})
    known = isinstance(posterior, Mapping) and isinstance(loss, Mapping)
    if known and posterior.get("kind") == "shallow":
        filled["loss"] = {"kind": "shallow"} | dict(loss)
    return filled
