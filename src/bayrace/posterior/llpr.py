"""LLPR (Bigi 2024), last-layer prediction rigidity: an error estimate without retraining.

With φ the last hidden activations summed over a structure and

    C = Σ φφᵀ + w Σ ∂φ ∂φᵀ + ςI

over the energies and the force components of the training set, s = φᵀ C⁻¹ φ is small where training
has been and large where it has not, and so is ∂φᵀ C⁻¹ ∂φ for forces. A force counts by its noise:
w, in Å², is the ratio of the variances of validation errors of energies and of forces, by their
medians, which no single frame moves.

The scales α of energies, forces and stress maximise the likelihood of validation errors under the
TOTAL variance, N(e; 0, a + α² s), where a is the noise that the network itself predicts; ς is the
most likely for energies and forces together, each counted as one number of a structure.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances, Outputs, Params
from bayrace.core.protocols import LinearModel, Model, Posterior
from bayrace.data.dataset import Dataset
from bayrace.likelihood.total import Scale, total_scale
from bayrace.models.noise import Lambdas
from bayrace.posterior.example import last_layer
from bayrace.posterior.gaussian.last_layer import LastLayer, last_layer_places
from bayrace.posterior.gaussian.rows import (
    Rows,
    energy_rows,
    forces_gram,
    forces_rows,
    stress_rows,
)
from bayrace.posterior.method import Example, FitTask, Fitted, PosteriorMethod
from bayrace.posterior.stored import Group, Layout

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LlprOptions(PosteriorMethod):
    """Last-layer prediction rigidity: error estimates without retraining."""

    name: ClassVar[str] = "llpr"
    adopts: ClassVar[bool] = True
    keeps_weights: ClassVar[bool] = True
    regularisation: Annotated[float, Gt(0)] | None = None
    """ς in units of the mean eigenvalue; null: by the validation errors."""
    force_rows: Annotated[int, Ge(0)] | None = 4000
    """Random sums of training forces that count beside the energies, each a pass of one structure;
    0: energies alone; null: every component, exactly."""
    force_samples: Annotated[int, Ge(0)] = 0
    """Random directions for force covariances, each a backward pass; 0: all, exactly."""

    def fit(self, task: FitTask) -> Fitted:
        """Attach it to trained weights."""
        made = fit(
            task.model,
            task.weights,
            task.train,
            task.valid,
            options=self,
            lambdas=task.lambdas,
            seed=task.settings.seed,
            progress=task.callbacks.progress,
        )
        return Fitted(made)

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Llpr:
        """The stored one."""
        return Llpr.restore(tensors, options)

    @classmethod
    def layout(cls, posterior: Posterior) -> Layout:  # noqa: ARG003
        """Weights, and a Gaussian over the last layer."""
        return Layout((Group("params/"),), last_layer=True)

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """With scales of 1."""
        return {
            cls.name: lambda model, params: Llpr(
                last_layer(model, params), 1.0, 1e-6, alpha_forces=1.0, alpha_stress=1.0
            )
        }


@dataclass(frozen=True, eq=False)
class Llpr:
    """A Gaussian over the last layer with covariance α² C⁻¹; implements `ClosedForm`.

    Forces and stress have scales of their own, which weight samples, having one, do not show.
    """

    name: ClassVar[str] = "llpr"
    last: LastLayer  # its factor is that of energies, α C^-½
    alpha: float  # eV; α² has the unit of an energy's variance
    regularisation: float  # ς in units of the mean eigenvalue
    alpha_forces: float  # eV, α of forces
    alpha_stress: float | None  # eV; None: no labels have scaled it, so it is not modelled

    @property
    def samples(self) -> int:
        """One: the mean, whose variances are known."""
        return 1

    def draw(self, samples: int, *, seed: int) -> Params:
        """The mean for one sample, else draws of the last layer."""
        return self.last.draw(samples, seed=seed)

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
        """Variances of the predictions `outputs`; forces cost a backward pass per direction.

        None for a stress that is not modelled.
        """
        stress = stress and self.alpha_stress is not None
        found = self.last.spread(model, params, batch, outputs, forces=forces, stress=stress)
        return EpistemicVariances(
            found.energy,
            _scaled(found.forces, self.alpha_forces / self.alpha),
            _scaled(found.stress, (self.alpha_stress or 0.0) / self.alpha),
            found.atomic,
        )

    def tensors(self) -> Params:
        """Mean weights and factors of the covariance."""
        return self.last.tensors()

    def options(self) -> dict[str, Any]:
        """The scales and ς."""
        return {
            "alpha": self.alpha,
            "alpha_forces": self.alpha_forces,
            "alpha_stress": self.alpha_stress,
            "regularisation": self.regularisation,
        }

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        """The posterior that was stored; before there were several scales, forces had α too."""
        alpha, stress = float(options["alpha"]), options.get("alpha_stress")
        return cls(
            LastLayer.restore(tensors),
            alpha,
            float(options["regularisation"]),
            alpha_forces=float(options.get("alpha_forces", alpha)),
            alpha_stress=None if stress is None else float(stress),
        )

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        return replace(self, last=self.last.to(device=device, dtype=dtype))


def fit(
    model: LinearModel,
    params: Params,
    train: Dataset,
    valid: Dataset,
    *,
    options: LlprOptions,
    lambdas: Lambdas,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Llpr:
    """Attach LLPR to trained weights, which stay as they are.

    `lambdas` are those of the training loss. `progress` hears how many structures are done, of
    len(train) + len(valid).
    """
    params = {name: value.detach() for name, value in params.items()}
    held = _held_out(model, params, valid, lambdas=lambdas, seed=seed)
    trained = energy_rows(model, params, train, lambdas=lambdas).features
    gram = trained.T @ trained
    if options.force_rows != 0 and any(frame.forces is not None for frame in train.frames):
        gram = gram + _relative_weight(held) * forces_gram(
            model, params, train, rows=options.force_rows, seed=seed, progress=progress
        )
    spectrum = _Spectrum(*torch.linalg.eigh(gram))
    relative = _regularisation(spectrum, held, options.regularisation)
    scales = {name: _scale(spectrum, rows, relative) for name, rows in held.items()}
    _tell(scales)
    factor = scales["energy"].alpha * spectrum.inverse_root(relative)
    sampled = _directions(factor, options.force_samples, seed=seed)
    last = LastLayer(params, last_layer_places(model, params), factor, sampled)
    progress(len(train) + len(valid))
    stress = scales.get("stress")
    return Llpr(
        last,
        scales["energy"].alpha,
        relative,
        alpha_forces=scales.get("forces", scales["energy"]).alpha,
        alpha_stress=None if stress is None else stress.alpha,
    )


_GRID: tuple[float, ...] = tuple(
    10.0 ** (power / 2) for power in range(-30, 9)
)  # of ς, in mean eigenvalues
_VALIDATED = 2000  # force components of validation frames, about


class _Spectrum(NamedTuple):
    """Eigenvalues and eigenvectors of C without ς."""

    values: Tensor  # (D,)
    vectors: Tensor  # (D, D), columns

    def weights(self, relative: float) -> Tensor:
        """Eigenvalues (D,) of C⁻¹ for ς in units of the mean eigenvalue."""
        return 1 / (self.values.clamp(min=0) + relative * self.values.mean())

    def inverse_root(self, relative: float) -> Tensor:
        """A square root A of C⁻¹ = A Aᵀ, (D, D)."""
        return self.vectors * self.weights(relative).sqrt()


def _held_out(
    model: LinearModel, params: Params, valid: Dataset, *, lambdas: Lambdas, seed: int
) -> dict[str, Rows]:
    """What the validation labels of each quantity are compared with; without labels left out."""
    rows = {
        "energy": energy_rows(model, params, valid, lambdas=lambdas),
        "forces": forces_rows(
            model, params, valid, lambdas=lambdas, count=_VALIDATED, seed=seed + 1
        ),
        "stress": stress_rows(model, params, valid, lambdas=lambdas),
    }
    if not len(rows["energy"].error):
        raise ValueError("no validation frame has an energy; LLPR fits its scale to such errors")
    return {name: found for name, found in rows.items() if len(found.error)}


def _relative_weight(held: Mapping[str, Rows]) -> float:
    """w, Å²: the variance of energy errors over that of force errors."""
    if "forces" not in held:
        raise ValueError(
            "training frames have forces and no validation frame has, so that their noise is "
            "unknown; give validation forces, or use posterior.llpr.force_rows=0"
        )
    energy, forces = (float(held[name].error.abs().median()) for name in ("energy", "forces"))
    return (energy / forces) ** 2 if energy > 0 and forces > 0 else 1.0


def _regularisation(spectrum: _Spectrum, held: Mapping[str, Rows], given: float | None) -> float:
    """ς of the highest likelihood of energies and forces."""
    fitted = {name: rows for name, rows in held.items() if name != "stress"}

    def loss(relative: float) -> float:
        return sum(_scale(spectrum, rows, relative).loss for rows in fitted.values())

    found = {relative: loss(relative) for relative in (_GRID if given is None else (given,))}
    relative = min(found, key=lambda each: found[each])
    if not math.isfinite(found[relative]):
        raise ValueError(
            f"regularisation={given}: no finite likelihood of the validation energies; "
            "give a larger one, e.g. 1e-6, or more training frames"
        )
    # below the smallest eigenvalue ς does nothing, and its edge does not matter
    smallest = float(spectrum.values.min() / spectrum.values.mean())
    low = relative == _GRID[0] and smallest < 10 * relative
    if given is None and (low or relative == _GRID[-1]):
        _log.warning(
            "LLPR: the most likely ς, %.0e of the mean eigenvalue, is at the edge of its range "
            "%.0e to %.0e; σ far from the data is then hardly known. More training frames, or "
            "force labels (posterior.llpr.force_rows), would settle it.",
            relative,
            _GRID[0],
            _GRID[-1],
        )
    return relative


def _scale(spectrum: _Spectrum, rows: Rows, relative: float) -> Scale:
    """α of one quantity for a ς."""
    shape = (rows.features @ spectrum.vectors).square() @ spectrum.weights(relative)
    return total_scale(
        _array(rows.error), _array(rows.noise_variance), _array(shape), count=rows.structures
    )


def _tell(scales: Mapping[str, Scale]) -> None:
    for name, scale in scales.items():
        if scale.bounded:
            _log.warning(
                "LLPR: the noise that the network predicts explains the validation errors of the "
                "%s already; the epistemic part is the largest that they do not contradict.",
                name,
            )


def _scaled(variance: Tensor | None, ratio: float) -> Tensor | None:
    return None if variance is None else variance * ratio**2


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.numpy(force=True)


def _directions(factor: Tensor, count: int, *, seed: int) -> Tensor | None:
    """Random combinations (D, count) whose covariance is that of the factor on average."""
    if count == 0 or count >= factor.shape[1]:
        return None
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(factor.shape[1], count, generator=generator, dtype=factor.dtype)
    return factor @ normal.to(factor.device) / math.sqrt(count)


METHODS = (LlprOptions,)
