"""Laplace (MacKay 1992): a Gaussian around trained weights, as wide as the curvature there allows.

The trained weights are taken as the most likely ones under a prior N(0, 1/τ), alike for all
weights, which is how they were initialised. The covariance is the inverse of τ I + Σ_q β_q JᵀΣ_q⁻¹J
over energies, forces and, if wanted, stress of the training set: its diagonal over all weights, or
the full matrix over the last layer. τ and, for models without noise heads, the noise 1/β_q maximise
the marginal likelihood; that noise is the same for all structures and for all force components.

The diagonal's log det is above that of the matrix (Hadamard), so its evidence is a lower bound.
With more weights than labels the bound is so loose that its best noise explains everything: 5 eV on
3BPA, where residuals are 5 meV. The noise is then that of the residuals, unless told otherwise.

Weights that move nothing but noise heads stay fixed: the data's means say nothing of them, and the
prior alone would scatter the noise by orders of magnitude. Weights that training data do not reach
at all keep the prior's variance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances, Outputs, Params
from bayrace.core.protocols import LinearModel, Model, NoisyModel, Posterior
from bayrace.data.dataset import Dataset, edge_batches
from bayrace.likelihood.evidence import (
    PRIOR,
    Evidence,
    Term,
    maximise_evidence,
    precision_matrix,
    residual_precision,
)
from bayrace.models.noise import Lambdas
from bayrace.posterior.example import SAMPLES, STEP, last_layer
from bayrace.posterior.gaussian.curvature import Probes, diagonal_ggn, last_layer_ggn, noise_slopes
from bayrace.posterior.gaussian.diagonal import Diagonal, flat
from bayrace.posterior.gaussian.last_layer import LastLayer, last_layer_places
from bayrace.posterior.gaussian.observed import Sums, label_sums
from bayrace.posterior.method import Example, FitTask, Fitted, PosteriorMethod
from bayrace.posterior.stored import MOST_SAMPLES, Group, Layout

Structure = Literal["diagonal", "last_layer"]
Predictive = Literal["glm", "sampled"]
NoiseBy = Literal["auto", "evidence", "residuals"]


@dataclass(frozen=True)
class LaplaceOptions(PosteriorMethod):
    """A Gaussian around trained weights, by the curvature of the loss there."""

    name: ClassVar[str] = "laplace"
    structure: Structure = "last_layer"
    """diagonal: of all weights, independent; last_layer: those of the last layer, correlated."""
    predictive: Predictive = "glm"
    """glm: linearised, in closed form; sampled: by weight samples."""
    samples: Annotated[int, Ge(1), Le(MOST_SAMPLES)] = 16
    """Weight samples of a sampled prediction."""
    probes: Annotated[int, Ge(1)] | None = 4
    """diagonal: random signs per structure that estimate the curvature of forces; null: every
    component, exactly."""
    prior_precision: Annotated[float, Gt(0)] | None = None
    """τ, the inverse variance of the prior of the weights; null: by the marginal likelihood."""
    noise: NoiseBy = "auto"
    """Whence the noise of models without noise heads: the marginal likelihood, the training errors,
    or the former where it is sound."""
    energy_noise: Annotated[float, Gt(0)] | None = None
    """σ of energies, eV; null: the model's, or as `noise` says."""
    forces_noise: Annotated[float, Gt(0)] | None = None
    """σ of force components, eV/Å; null: as for energies."""

    def fit(self, task: FitTask) -> Fitted:
        """Attach it to trained weights; stress labels count where they were trained on."""
        made = fit(
            task.model,
            task.weights,
            task.train,
            options=self,
            lambdas=task.lambdas,
            stress=task.settings.stress,
            seed=task.settings.seed,
            progress=task.callbacks.progress,
        )
        return Fitted(made)

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Laplace:
        """The stored one."""
        return Laplace.restore(tensors, options)

    @classmethod
    def layout(cls, posterior: Posterior) -> Layout:
        """Weights, and their standard deviations or a Gaussian over the last layer."""
        if posterior.options()["structure"] == "last_layer":
            return Layout((Group("params/"),), last_layer=True)
        return Layout((Group("params/"), Group("std/", least=0.0)))

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Of both structures, and both predictives."""
        return {
            "laplace, diagonal, sampled": lambda _, p: Laplace(_diagonal_of(p), SAMPLES, {}),
            "laplace, diagonal, glm": lambda _, p: LinearisedLaplace(_diagonal_of(p), 1, {}),
            "laplace, last layer, sampled": lambda m, p: Laplace(last_layer(m, p), SAMPLES, {}),
            "laplace, last layer, glm": lambda m, p: LinearisedLaplace(last_layer(m, p), 1, {}),
        }


class LaplaceModel(NoisyModel, LinearModel, Protocol):
    """A model with a last layer that says what its heads mean."""


@dataclass(frozen=True, eq=False)
class Laplace:
    """Predictions average over draws of the Gaussian."""

    name: ClassVar[str] = "laplace"
    predictive: ClassVar[Predictive] = "sampled"
    gaussian: Diagonal | LastLayer
    samples: int
    found: Mapping[str, float]  # log_evidence, prior_precision, energy_noise, forces_noise, …

    def draw(self, samples: int, *, seed: int) -> Params:
        """Draws of the Gaussian, stacked."""
        if samples < 1:
            raise ValueError(f"samples={samples}: draw at least 1")
        return self.gaussian.sample(samples, seed=seed)

    def tensors(self) -> Params:
        """Mean weights, and standard deviations or the last layer's covariance."""
        return self.gaussian.tensors()

    def label_noise(self) -> dict[str, float]:
        """The noise of labels that the fit found, where the model predicts none; `Noisy`."""
        names = {name: f"{name}_noise" for name in ("energy", "forces", "stress")}
        return {name: self.found[key] for name, key in names.items() if key in self.found}

    def options(self) -> dict[str, Any]:
        """Of what kind it is, and what its fit found."""
        structure = "diagonal" if isinstance(self.gaussian, Diagonal) else "last_layer"
        return {
            "structure": structure,
            "predictive": self.predictive,
            "samples": self.samples,
            "found": dict(self.found),
        }

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        """The posterior that was stored, with the predictive that was stored."""
        gaussian = Diagonal if options["structure"] == "diagonal" else LastLayer
        kind = _KINDS[options["predictive"]]
        if not issubclass(kind, cls):
            raise ValueError(f"predictive {options['predictive']!r}: restore it by Laplace.restore")
        return kind(gaussian.restore(tensors), int(options["samples"]), dict(options["found"]))

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        return replace(self, gaussian=self.gaussian.to(device=device, dtype=dtype))


@dataclass(frozen=True, eq=False)
class LinearisedLaplace(Laplace):
    """Predictions are linearised around the mean (GLM): moments in closed form, `ClosedForm`."""

    predictive: ClassVar[Predictive] = "glm"

    def draw(self, samples: int, *, seed: int) -> Params:
        """The mean for one sample, else draws of the Gaussian."""
        return self.gaussian.mean() if samples == 1 else super().draw(samples, seed=seed)

    def spread(
        self,
        model: Model,
        params: Params,
        batch: GraphBatch,
        outputs: Outputs,
        *,
        forces: bool,
        stress: bool,
    ) -> EpistemicVariances:
        """J Σ Jᵀ of energies, of each atom's force and of the stress.

        Force covariances cost a backward pass per component (diagonal) or weight (last layer).
        `params` may be folded; the diagonal goes back to the weights that were trained.
        """
        if isinstance(self.gaussian, LastLayer):
            return self.gaussian.spread(model, params, batch, outputs, forces=forces, stress=stress)
        return self.gaussian.spread(model, batch, forces=forces, stress=stress)


_KINDS: dict[str, type[Laplace]] = {"sampled": Laplace, "glm": LinearisedLaplace}


def fit(
    model: LaplaceModel,
    params: Params,
    train: Dataset,
    *,
    options: LaplaceOptions,
    lambdas: Lambdas,
    stress: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Laplace:
    """Attach a Gaussian to trained weights; nothing is retrained.

    `lambdas` are those of the training loss, `stress` says whether stress labels count too, and
    `seed` is that of random signs. `progress` hears the structures done, of len(train).
    """
    params = {name: value.detach() for name, value in params.items()}
    forces = any(frame.forces is not None for frame in train.frames)
    sums = label_sums(
        model,
        params,
        edge_batches(train, like=params, edges=_EDGES),
        lambdas=lambdas,
        forces=forces,
        stress=stress,
    )
    if not sums:
        raise ValueError("no training frame has a label; give the frames the model was fitted to")
    if options.structure == "diagonal":
        probes = None if options.probes is None else Probes(options.probes, seed)
        curvature, places = _diagonal(model, params, train, sums, probes, lambdas, progress)
    else:
        curvature, places = _last_layer(model, params, train, sums, lambdas, progress)
    terms = {
        name: Term(curvature[name], one.squares, one.log_volume, one.components)
        for name, one in sums.items()
    }
    weights = flat(params)[places]
    evidence = maximise_evidence(terms, weights, fixed=_fixed(options, sums, terms))
    precision = precision_matrix(terms, evidence.precisions)
    wrap = Diagonal.of_precision if options.structure == "diagonal" else _correlated
    kind = _KINDS[options.predictive]
    samples = options.samples if options.predictive == "sampled" else 1
    return kind(wrap(params, places, precision), samples, _found(evidence, sums, len(weights)))


_EDGES = 10_000  # of a batch where structures may share one


def _diagonal(
    model: LaplaceModel,
    params: Params,
    train: Dataset,
    sums: Mapping[str, Sums],
    probes: Probes | None,
    lambdas: Lambdas,
    progress: Callable[[int], None] | None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Curvature (P,) by quantity, and the places (P,) of the weights that are not fixed."""
    found = diagonal_ggn(
        model,
        params,
        edge_batches(train, like=params, edges=0),
        lambdas=lambdas,
        probes=probes,
        forces="forces" in sums,
        stress="stress" in sums,
        progress=progress,
    )
    graphs = (batch for batch, _ in edge_batches(train, like=params, edges=_EDGES))
    slopes = flat(noise_slopes(model, params, graphs))
    curvature = {name: flat(found[name]) for name in sums}
    held = torch.stack(list(curvature.values())).any(0)
    places = (held | (slopes == 0)).nonzero().squeeze(1)
    return {name: value[places] for name, value in curvature.items()}, places


def _last_layer(
    model: LaplaceModel,
    params: Params,
    train: Dataset,
    sums: Mapping[str, Sums],
    lambdas: Lambdas,
    progress: Callable[[int], None] | None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Curvature (D, D) by quantity, and the places (D,) of the last layer's weights."""
    found = last_layer_ggn(
        model,
        params,
        edge_batches(train, like=params, edges=_EDGES),
        lambdas=lambdas,
        forces="forces" in sums,
        stress="stress" in sums,
        progress=progress,
    )
    return {name: found[name].cpu() for name in sums}, last_layer_places(model, params).cpu()


def _correlated(params: Params, places: Tensor, precision: Tensor) -> LastLayer:
    device = next(iter(params.values())).device
    identity = torch.eye(len(places), dtype=precision.dtype)
    factor = torch.linalg.cholesky(precision)
    root = torch.linalg.solve_triangular(factor, identity, upper=False).T  # H⁻¹ = root rootᵀ
    return LastLayer(params, places.to(device), root.contiguous().to(device))


def _fixed(
    options: LaplaceOptions, sums: Mapping[str, Sums], terms: Mapping[str, Term]
) -> dict[str, float]:
    """Precisions that the evidence has not to find."""
    labels = sum(one.components for one in sums.values())
    curvature = next(iter(terms.values())).curvature
    loose = curvature.ndim == 1 and len(curvature) > labels
    fixed = {name: 1.0 for name, one in sums.items() if one.own}
    if options.noise == "residuals" or (options.noise == "auto" and loose):
        own = set(fixed)
        fixed |= {name: residual_precision(t) for name, t in terms.items() if name not in own}
    for name, std in (("energy", options.energy_noise), ("forces", options.forces_noise)):
        if std is not None and name in sums:
            if sums[name].own:
                raise ValueError(
                    f"{name}_noise={std}: this model predicts the noise itself; leave it out"
                )
            fixed[name] = std**-2
    if options.prior_precision is not None:
        fixed[PRIOR] = options.prior_precision
    return fixed


def _found(evidence: Evidence, sums: Mapping[str, Sums], weights: int) -> dict[str, float]:
    """What users may want to know; standard deviations in eV, eV/Å, eV/Å³ unless the model's."""
    noise = {
        f"{name}_noise": evidence.precisions[name] ** -0.5
        for name, one in sums.items()
        if not one.own
    }
    return {
        "log_evidence": evidence.value,
        "prior_precision": evidence.precisions[PRIOR],
        "weights": weights,
    } | noise


def _diagonal_of(params: Params) -> Diagonal:
    return Diagonal(params, {name: STEP * value.abs() for name, value in params.items()})


METHODS = (LaplaceOptions,)
