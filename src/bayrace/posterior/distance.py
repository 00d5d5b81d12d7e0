"""Distance to the training data: an error estimate for the price of a prediction, forces included.

φ are the last hidden activations of an atom, μ and Σ their mean and covariance over the atoms of
its element in the training set. The latent distance (Janet 2019)

    m = (φ - μ)ᵀ Σ⁻¹ (φ - μ) / ⟨the same over the training atoms⟩

is about 1 where training has been and 10² to 10⁴ where it has not. The error of a force follows it
at home and abroad alike, and that of an energy follows the rigidity of the structure (LLPR, Bigi
2024), φ summed over its atoms and C = Σ φφᵀ + ςI over the training structures:

    cov F = c m^p,    var E = α² φᵀC⁻¹φ ⟨m^(p-1)⟩ over atoms,    var σ_ij = b Σ m^p / V².

Rigidity takes the features for given. Far from the data they are wrong too, and errors grow faster
than m: p = 1.25 served two molecules from home to three times the temperature, where p = 1 left σ
half as large as the errors. c of every element, α and b are fitted to validation errors, and so is
how much of the network's own noise is left beside them (`bayrace.likelihood.robust.shares`).
Nothing is differentiated. The price: force covariances have no direction of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Outputs, Params, Spread
from bayrace.core.protocols import LinearModel, Model
from bayrace.data.dataset import Dataset, edge_batches
from bayrace.likelihood.robust import Shares, robust_scale, shares
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, noise, noise_spec_of
from bayrace.nn.covariance import isotropic_covariance, to_mandel
from bayrace.posterior.gaussian.last_layer import LastLayer, last_layer_places, structure_features

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DistanceOptions:
    """How distances become variances."""

    power: float  # p
    regularisation: float  # added to the eigenvalues of Σ, in units of their mean


@dataclass(frozen=True, eq=False)
class Distance:
    """Weights, and what is known of the features that they give; implements `ClosedForm`.

    Draws of more than one sample are those of the last layer by LLPR, whose energies scatter as C
    says, without the growth by m^(p-1).
    """

    name: ClassVar[str] = "distance"
    last: LastLayer  # its factor is α C^-½; zeros where energies are not modelled
    centre: Tensor  # (Z, D) float64, μ of each element
    whitening: Tensor  # (Z, D, D) float64, m = |(φ - μ) @ whitening|²
    forces_scale: Tensor | None  # (Z,) float64 (eV/Å)², c; None: forces are not modelled
    stress_scale: float | None  # eV²; None: the stress is not modelled
    power: float  # p
    energy_modelled: bool
    noise: Mapping[str, float]  # factors of the network's noise variances, by quantity

    @property
    def samples(self) -> int:
        """One: the mean, whose variances are known."""
        return 1

    def draw(self, samples: int, *, seed: int) -> Params:
        """The mean for one sample, else draws of the last layer."""
        if samples < 1:
            raise ValueError(f"samples={samples}: draw at least 1")
        return self.last.mean() if samples == 1 else self.last.sample(samples, seed=seed)

    def noise_scale(self) -> Mapping[str, float]:
        """How much of the variances that the network predicts as noise is left, by quantity."""
        return self.noise

    def distances(self, batch: GraphBatch, outputs: Outputs) -> Tensor:
        """m of every atom, (N,) float64 in the batch's order; 1 is the mean of the training."""
        return latent_distance(self.centre, self.whitening, batch, _hidden(outputs))

    def spread(
        self,
        model: Model,  # noqa: ARG002 - nothing is evaluated again
        params: Params,  # noqa: ARG002
        batch: GraphBatch,
        outputs: Outputs,
        *,
        forces: bool,
        stress: bool,
    ) -> Spread:
        """Variances of the predictions `outputs`; None for what is not modelled."""
        hidden, factor = _hidden(outputs).double(), self.last.factor
        distance = self.distances(batch, outputs)
        excess = distance ** (self.power - 1)
        rigid = (structure_features(batch, hidden) @ factor).square().sum(-1)
        energy = rigid * _mean(excess, batch)
        atomic = (hidden @ factor).square().sum(-1) * excess if self.energy_modelled else None
        if atomic is None:
            energy = torch.full_like(energy, torch.nan)
        grown = distance * excess
        covariance = virial = None
        if forces and self.forces_scale is not None:
            variance = self.forces_scale[batch.species] * grown
            covariance = variance[:, None, None] * isotropic_covariance(3).to(variance)
        if stress and self.stress_scale is not None:
            level = self.stress_scale * _sum(grown, batch) / batch.volume.double().square()
            virial = level[:, None, None] * isotropic_covariance(6).to(level)
        return Spread(energy, covariance, virial, atomic)

    def tensors(self) -> Params:
        """Mean weights, the rigidity of energies, and the features of training atoms."""
        own = {"centre": self.centre, "whitening": self.whitening}
        if self.forces_scale is not None:
            own["forces_scale"] = self.forces_scale
        return self.last.tensors() | own

    def options(self) -> dict[str, Any]:
        """The scales."""
        return {
            "power": self.power,
            "stress_scale": self.stress_scale,
            "energy_modelled": self.energy_modelled,
            "noise": dict(self.noise),
        }

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        """The posterior that was stored."""
        stress = options["stress_scale"]
        return cls(
            LastLayer.restore(tensors),
            tensors["centre"],
            tensors["whitening"],
            tensors.get("forces_scale"),
            stress_scale=None if stress is None else float(stress),
            power=float(options["power"]),
            energy_modelled=bool(options["energy_modelled"]),
            noise={str(name): float(value) for name, value in options["noise"].items()},
        )

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision of the weights."""
        scale = self.forces_scale
        return replace(
            self,
            last=self.last.to(device=device, dtype=dtype),
            centre=self.centre.to(device=device),
            whitening=self.whitening.to(device=device),
            forces_scale=None if scale is None else scale.to(device=device),
        )


def fit(
    model: LinearModel,
    params: Params,
    train: Dataset,
    valid: Dataset,
    *,
    options: DistanceOptions,
    lambdas: Lambdas,
    progress: Callable[[int], None] = lambda _: None,
) -> Distance:
    """Attach distances to trained weights, which stay as they are.

    `lambdas` are those of the training loss. `progress` hears how many structures are done, of
    len(train) + len(valid).
    """
    params = {name: value.detach() for name, value in params.items()}
    seen = _features(model, params, train, progress)
    centre, whitening = _whitened(seen, options.regularisation)
    root = _inverse_root(seen.structures)
    places = last_layer_places(model, params)
    bare = Distance(
        LastLayer(params, places, root),
        centre,
        whitening,
        torch.ones(len(centre), dtype=_REAL, device=root.device),
        stress_scale=1.0,
        power=options.power,
        energy_modelled=True,
        noise={},
    )
    held = _held_out(bare, model, params, valid, lambdas)
    progress(len(train) + len(valid))
    energy, stress = _scaled(held.energy), _scaled(held.stress)
    by_element, forces = _scaled_forces(held, len(centre))
    found = {"energy": energy, "forces": forces, "stress": stress}
    return replace(
        bare,
        last=replace(bare.last, factor=root * math.sqrt(energy.ignorance if energy else 0.0)),
        energy_modelled=energy is not None,
        forces_scale=None if by_element is None else by_element.to(root),
        stress_scale=None if stress is None else stress.ignorance,
        noise={name: each.noise for name, each in found.items() if each is not None},
    )


def latent_distance(centre: Tensor, whitening: Tensor, batch: GraphBatch, hidden: Tensor) -> Tensor:
    """|(φ - μ) @ whitening|² of atoms (N,) float64, by element; atoms are sorted by it."""
    features = torch.split(hidden.double(), list(batch.species_counts))
    parts = [
        ((each - mean) @ white).square().sum(-1)
        for each, mean, white in zip(features, centre, whitening, strict=True)
    ]
    return torch.cat(parts)


_REAL = torch.float64
_EDGES = 10_000  # of a batch
_PRIOR_ATOMS = 10  # that an element borrows from the others in covariance and scale
_RIGID = 1e-10  # ς, in units of the mean eigenvalue of C


class _Seen(NamedTuple):
    """Moments of the features of the training set."""

    atoms: Tensor  # (Z,) of each element, their number
    total: Tensor  # (Z, D)
    square: Tensor  # (Z, D, D)
    structures: Tensor  # (D, D), Σ φφᵀ of whole structures


class _Errors(NamedTuple):
    """Validation errors of one quantity, (n,) each."""

    square: Array
    noise: Array  # variances that the network predicts
    shape: Array  # variances of the posterior whose scales are 1
    element: NDArray[np.int64]  # index of the atom's; 0 where there is none
    structures: int  # they come from


class _HeldOut(NamedTuple):
    """Errors by quantity; None where no label is known."""

    energy: _Errors | None
    forces: _Errors | None
    stress: _Errors | None


def _features(
    model: LinearModel, params: Params, data: Dataset, progress: Callable[[int], None]
) -> _Seen:
    kinds = len(model.elements)
    seen: _Seen | None = None
    done = 0
    for batch, _ in edge_batches(data, like=params, edges=_EDGES):
        with torch.no_grad():
            hidden = _hidden(evaluate(model, params, batch, forces=False)).double()
        if seen is None:
            zero = hidden.new_zeros(kinds, hidden.shape[1])
            gram = hidden.new_zeros(hidden.shape[1], hidden.shape[1])
            seen = _Seen(hidden.new_zeros(kinds), zero, gram.repeat(kinds, 1, 1), gram)
        parts = torch.split(hidden, list(batch.species_counts))
        whole = structure_features(batch, hidden)
        seen = _Seen(
            seen.atoms + torch.tensor(batch.species_counts, device=hidden.device),
            seen.total + torch.stack([part.sum(0) for part in parts]),
            seen.square + torch.stack([part.T @ part for part in parts]),
            seen.structures + whole.T @ whole,
        )
        done += batch.structures
        progress(done)
    if seen is None:
        raise ValueError("no training structure; distances need at least one")
    return seen


def _whitened(seen: _Seen, regularisation: float) -> tuple[Tensor, Tensor]:
    """Centres (Z, D) and whitening matrices (Z, D, D) of the elements.

    An element borrows the covariance of all, as if some of its atoms had it, so that one with few
    atoms has one at all.
    """
    count = seen.atoms.clamp(min=1)[:, None]
    centre = seen.total / count
    own = seen.square / count[..., None] - centre[:, :, None] * centre[:, None, :]
    weight = (seen.atoms / seen.atoms.sum())[:, None, None]
    pooled = (weight * own).sum(0)
    part = (seen.atoms / (seen.atoms + _PRIOR_ATOMS))[:, None, None]
    mixed = part * own + (1 - part) * pooled
    values, vectors = torch.linalg.eigh(mixed)
    floor = regularisation * values.clamp(min=0).mean(-1, keepdim=True)
    spread = values.clamp(min=0) + floor
    white = vectors / spread.sqrt()[:, None, :]
    usual = (values.clamp(min=0) / spread).sum(-1)  # ⟨m⟩ of training atoms and borrowed ones
    return centre, white / usual.clamp(min=1e-300).sqrt()[:, None, None]


def _inverse_root(gram: Tensor) -> Tensor:
    """A with A Aᵀ = (C + ςI)⁻¹, (D, D)."""
    values, vectors = torch.linalg.eigh(gram)
    least = _RIGID * values.clamp(min=0).mean()
    root: Tensor = vectors / (values.clamp(min=0) + least).sqrt()
    return root


def _held_out(
    bare: Distance, model: LinearModel, params: Params, valid: Dataset, lambdas: Lambdas
) -> _HeldOut:
    parts: dict[str, list[_Errors]] = {"energy": [], "forces": [], "stress": []}
    stress = any(frame.stress is not None and frame.pbc.all() for frame in valid.frames)
    for batch, labels in edge_batches(valid, like=params, edges=_EDGES):
        with torch.no_grad():
            outputs = evaluate(model, params, batch, stress=stress)
            own = noise(outputs, batch, noise_spec_of(model), lambdas)
            spread = bare.spread(model, params, batch, outputs, forces=True, stress=stress)
        element = batch.species[:, None].expand(-1, 3)
        none = batch.species.new_zeros(batch.structures)
        parts["energy"].append(
            _known(outputs.energy - labels.energy, own.energy, spread.energy, none)
        )
        parts["forces"].append(
            _known(outputs.forces - labels.forces, own.forces, spread.forces, element)
        )
        if outputs.stress is not None:
            error = to_mandel(outputs.stress - labels.stress)  # in which all directions are alike
            parts["stress"].append(
                _known(error, own.stress, spread.stress, none[:, None].expand(-1, 6))
            )
    return _HeldOut(**{name: _joined(each) for name, each in parts.items()})


def _known(error: Tensor, own: Tensor | None, spread: Tensor | None, element: Tensor) -> _Errors:
    """Those errors (n,) or (n, d) that are known, with variances of no direction."""
    assert spread is not None
    square = error.double().square()
    known = ~square.isnan()
    shape = _levels(spread, square)[known]
    predicted = torch.zeros_like(square) if own is None else _levels(own, square)
    return _Errors(
        square[known].numpy(force=True),
        predicted[known].numpy(force=True),
        shape.numpy(force=True),
        element[known].numpy(force=True),
        int(known.reshape(len(known), -1).any(-1).sum()),
    )


def _levels(variance: Tensor, like: Tensor) -> Tensor:
    """Variances as they are, or the mean over components of covariances, of the shape of `like`."""
    if variance.shape == like.shape:
        return variance.double()
    diagonal = _component_variances(variance.double())
    return diagonal.mean(-1, keepdim=True).expand(like.shape)


def _component_variances(covariance: Tensor) -> Tensor:
    """Variances (..., d) of components; of a stress those of Mandel's, which count shear twice."""
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    return to_mandel(to_mandel(diagonal)) if diagonal.shape[-1] == 6 else diagonal


def _joined(parts: list[_Errors]) -> _Errors | None:
    if not any(part.square.size for part in parts):
        return None
    return _Errors(
        np.concatenate([part.square for part in parts]),
        np.concatenate([part.noise for part in parts]),
        np.concatenate([part.shape for part in parts]),
        np.concatenate([part.element for part in parts]),
        sum(part.structures for part in parts),
    )


def _scaled(errors: _Errors | None) -> Shares | None:
    if errors is None:
        return None
    found = shares(errors.square, errors.noise, errors.shape, count=errors.structures)
    return found if found.ignorance > 0 else None


def _scaled_forces(held: _HeldOut, kinds: int) -> tuple[Tensor | None, Shares | None]:
    """c of every element, (Z,), and the share of the noise."""
    errors = held.forces
    if errors is None:
        return None, None
    size = np.sqrt(errors.square / errors.shape)
    common = robust_scale(size) ** 2
    if not common > 0:
        return None, None
    log = np.zeros(kinds)  # of c over that of all
    for element in range(kinds):
        own = size[errors.element == element]
        if own.any():
            part = own.size / (own.size + 3 * _PRIOR_ATOMS)
            log[element] = part * math.log(robust_scale(own) ** 2 / common)
    relative = np.exp(log)
    shape = errors.shape * relative[errors.element]
    found = _scaled(errors._replace(shape=shape))
    if found is None:
        return None, None
    return torch.from_numpy(found.ignorance * relative), found


def _hidden(outputs: Outputs) -> Tensor:
    if outputs.hidden is None:
        raise ValueError(
            "this model does not tell its last hidden activations (activation relu); use "
            "posterior: ensemble or swag for its uncertainty, or posterior: point"
        )
    return outputs.hidden


def _sum(values: Tensor, batch: GraphBatch) -> Tensor:
    """Over the atoms of each structure, (S,)."""
    return values.new_zeros(batch.structures).index_add(0, batch.owner, values)


def _mean(values: Tensor, batch: GraphBatch) -> Tensor:
    return _sum(values, batch) / batch.atom_counts()
