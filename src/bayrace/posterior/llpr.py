"""LLPR (Bigi 2024), last-layer prediction rigidity: an error estimate without retraining.

With φ the last hidden activations summed over a structure and C = Σ φφᵀ + ςI over the training
structures, σ_E² = α² φᵀ C⁻¹ φ: small where training has been, large where it has not. Forces are
linear in the same weights, so their covariance is α² (∂φ)ᵀ C⁻¹ ∂φ. α and ς maximise the likelihood
of validation energies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from bayrace.data.cache import Dataset, edge_batches
from bayrace.model.derivatives import evaluate
from bayrace.model.last_layer import (
    LastLayer,
    LinearModel,
    last_layer_places,
    structure_features,
)
from bayrace.types import GraphBatch, Model, Outputs, Params, Spread


@dataclass(frozen=True)
class LlprOptions:
    """How C is made regular, and how exact force covariances are."""

    regularisation: float | None  # ς in units of the mean eigenvalue of Σ φφᵀ; None: validation
    force_samples: int  # random directions of the weights for forces; 0: all, exactly


@dataclass(frozen=True, eq=False)
class Llpr:
    """A Gaussian over the last layer with covariance α² C⁻¹; implements `ClosedForm`."""

    name: ClassVar[str] = "llpr"
    last: LastLayer
    alpha: float  # eV; α² has the unit of an energy's variance
    regularisation: float  # ς in units of the mean eigenvalue

    @property
    def samples(self) -> int:
        """One: the mean, whose variances are known."""
        return 1

    def draw(self, samples: int, *, seed: int) -> Params:
        """The mean for one sample, else draws of the last layer."""
        if samples < 1:
            raise ValueError(f"samples={samples}: draw at least 1")
        return self.last.mean() if samples == 1 else self.last.sample(samples, seed=seed)

    def spread(
        self,
        model: Model,
        params: Params,
        batch: GraphBatch,
        outputs: Outputs,
        *,
        forces: bool,
        stress: bool,
    ) -> Spread:
        """Variances of the predictions `outputs`; forces cost a backward pass per direction."""
        return self.last.spread(model, params, batch, outputs, forces=forces, stress=stress)

    def tensors(self) -> Params:
        """Mean weights and factors of the covariance."""
        return self.last.tensors()

    def options(self) -> dict[str, Any]:
        """α and ς."""
        return {"alpha": self.alpha, "regularisation": self.regularisation}

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        """The posterior that was stored."""
        return cls(
            LastLayer.restore(tensors), float(options["alpha"]), float(options["regularisation"])
        )

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        return type(self)(self.last.to(device=device, dtype=dtype), self.alpha, self.regularisation)


def fit(
    model: LinearModel,
    params: Params,
    train: Dataset,
    valid: Dataset,
    *,
    options: LlprOptions,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Llpr:
    """Attach LLPR to trained weights: one pass over the data, no gradients.

    `progress` hears how many structures are done, of len(train) + len(valid).
    """
    features, _ = _features(model, params, train, progress)
    held, error = _features(model, params, valid, lambda done: progress(len(train) + done))
    known = ~error.isnan()
    if not known.any():
        raise ValueError("no validation frame has an energy; LLPR fits its scale to such errors")
    gram = _Gram(*torch.linalg.eigh(features.T @ features))
    relative, alpha = _choose(gram, held[known], error[known], options.regularisation)
    factor = alpha * gram.inverse_root(relative)
    return Llpr(
        LastLayer(
            params,
            last_layer_places(model, params),
            factor,
            _directions(factor, options.force_samples, seed=seed),
        ),
        alpha,
        relative,
    )


_GRID = tuple(10.0 ** (power / 2) for power in range(-24, 1))  # of ς, in mean eigenvalues
_EDGES = 10_000  # of a batch


class _Gram(NamedTuple):
    """Eigenvalues and eigenvectors of Σ φφᵀ."""

    values: Tensor  # (D,)
    vectors: Tensor  # (D, D), columns

    def inverse_root(self, relative: float) -> Tensor:
        """A square root A of C⁻¹ = A Aᵀ, (D, D), for ς in units of the mean eigenvalue."""
        level = relative * self.values.mean()
        return self.vectors * (self.values.clamp(min=0) + level).rsqrt()


def _features(
    model: Model, params: Params, data: Dataset, progress: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Features (n, D) and energy errors (n,) of all structures, float64."""
    rows: list[Tensor] = []
    errors: list[Tensor] = []
    done = 0
    for batch, labels in edge_batches(data, like=params, edges=_EDGES):
        with torch.no_grad():
            outputs = evaluate(model, params, batch, forces=False)
        if outputs.hidden is None:
            raise ValueError("energies are not linear in a last layer; LLPR needs such a model")
        rows.append(structure_features(batch, outputs.hidden))
        errors.append(outputs.energy.double() - labels.energy.double())
        done += batch.structures
        progress(done)
    return torch.cat(rows), torch.cat(errors)


def _choose(
    gram: _Gram, features: Tensor, error: Tensor, regularisation: float | None
) -> tuple[float, float]:
    """ς and α of the highest likelihood; for a given ς the best α² is the mean of error²/φᵀC⁻¹φ."""
    best: tuple[float, float, float] | None = None
    for relative in _GRID if regularisation is None else (regularisation,):
        shape = (features @ gram.inverse_root(relative)).square().sum(-1)
        alpha = float((error.square() / shape).mean().sqrt())
        loss = float((shape.log() + 2 * math.log(alpha)).mean()) if alpha > 0 else math.inf
        if math.isfinite(loss) and (best is None or loss < best[0]):
            best = (loss, relative, alpha)
    if best is None:
        raise ValueError(
            f"regularisation={regularisation}: no finite likelihood of the validation energies; "
            "give a larger one, e.g. 1e-6, or more training frames"
        )
    return best[1], best[2]


def _directions(factor: Tensor, count: int, *, seed: int) -> Tensor | None:
    """Random combinations (D, count) whose covariance is that of the factor on average."""
    if count == 0 or count >= factor.shape[1]:
        return None
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(factor.shape[1], count, generator=generator, dtype=factor.dtype)
    return factor @ normal.to(factor.device) / math.sqrt(count)
