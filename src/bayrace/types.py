"""The values that flow through bayrace: graphs, labels, outputs of one weight sample, predictions.

Sizes: S structures, N atoms, E directed edges, P undirected pairs (E = 2P), Z elements.
Units: eV, Å, eV/Å, eV/Å³. Stress uses ASE's Voigt order (xx, yy, zz, yz, xz, xy) and sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Parameters of a model by name; members of a posterior are stacked along a leading dimension."""


@dataclass(frozen=True)
class GraphBatch:
    """Several structures as one graph.

    Two invariants make the kernels fast, and `bayrace.data.batch.collate` establishes both:
    atoms are sorted by species, and edges are sorted by receiver. `restore` undoes the first.
    """

    species: Tensor  # (N,) int64, index into the model's elements, ascending
    positions: Tensor  # (N, 3) Å
    cell: Tensor  # (S, 3, 3) Å, rows are lattice vectors; zero rows where not periodic
    volume: Tensor  # (S,) Å³; nan where the structure is not periodic in all three directions
    edges: Tensor  # (2, E) int64, receiver i and sender j; sorted by receiver
    shifts: Tensor  # (E, 3) whole cells: r_ij = x_j - x_i + shift @ cell
    owner: Tensor  # (N,) int64, structure of each atom
    first_edge: Tensor  # (N + 1,) int64, edges of receiver n are first_edge[n] : first_edge[n + 1]
    reverse: Tensor  # (E,) int64, index of the edge j -> i with the opposite shift
    pair: Tensor  # (E,) int64, undirected pair of each edge, in 0..P-1
    pair_edges: Tensor  # (2, P) int64, the two edges of each pair
    restore: Tensor  # (N,) int64, value_of_batch[restore] is in the order of the input files
    species_counts: tuple[int, ...]  # atoms of each element in the batch, length Z

    @property
    def structures(self) -> int:
        """Their number, S."""
        return self.cell.shape[0]

    @property
    def atoms(self) -> int:
        """Their number over all structures, N."""
        return self.species.shape[0]

    def atom_counts(self) -> Tensor:
        """Atoms of each structure, (S,) int64."""
        return torch.bincount(self.owner, minlength=self.structures)

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> GraphBatch:
        """Move to a device; `dtype` applies to positions, cell, volume and shifts."""
        real = {name: getattr(self, name).to(device=device, dtype=dtype) for name in _REAL}
        whole = {name: getattr(self, name).to(device=device) for name in _WHOLE}
        return replace(self, **real, **whole)


_REAL = ("positions", "cell", "volume", "shifts")
_WHOLE = ("species", "edges", "owner", "first_edge", "reverse", "pair", "pair_edges", "restore")


@dataclass(frozen=True)
class Labels:
    """Reference values of a batch in the batch's atom order; nan marks a missing label."""

    energy: Tensor  # (S,) eV, isolated-atom or fitted references already subtracted
    forces: Tensor  # (N, 3) eV/Å
    stress: Tensor  # (S, 6) eV/Å³
    weight: Tensor  # (S,) weight of each structure in the loss

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Labels:
        """Move to a device, change the dtype."""
        return Labels(*(value.to(device=device, dtype=dtype) for value in vars(self).values()))


class Heads(NamedTuple):
    """What the network returns: the energy and the raw numbers its noise is built from."""

    energy: Tensor  # (S,) eV, references not included
    atomic_energy: Tensor  # (N,) eV, sums to energy
    energy_head: Tensor | None  # (N,) log of eV²
    forces_head: Tensor | None  # (N, 6), meaning set by the covariance form
    stress_head: Tensor | None  # (S, H), meaning set by the covariance form
    hidden: Tensor | None  # (N, D), atomic_energy = hidden @ last layer + constants of the elements


class Outputs(NamedTuple):
    """What ONE weight sample says of a batch, before the λ correction."""

    energy: Tensor  # (S,) eV, references not included
    atomic_energy: Tensor  # (N,) eV
    forces: Tensor  # (N, 3) eV/Å
    stress: Tensor | None  # (S, 6) eV/Å³, nan where the structure is not fully periodic
    energy_head: Tensor | None  # (N,)
    forces_head: Tensor | None  # (N, 6)
    stress_head: Tensor | None  # (S, H)
    hidden: Tensor | None  # (N, D), see Heads


class LossParts(NamedTuple):
    """A scalar to minimise and its parts, each a scalar tensor."""

    total: Tensor
    parts: dict[str, Tensor]


@runtime_checkable
class Model(Protocol):
    """An energy as a pure function of parameters and graph."""

    @property
    def cutoff(self) -> float:
        """Å."""
        ...

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers in ascending order; GraphBatch.species indexes this tuple."""
        ...

    def init(
        self,
        seed: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Params:
        """Random parameters, the same for every dtype and device."""
        ...

    def energy(self, params: Params, batch: GraphBatch) -> Heads:
        """Energies of the structures; references are not included."""
        ...


class Likelihood(Protocol):
    """A loss on the outputs of one weight sample."""

    def loss(self, outputs: Outputs, labels: Labels, batch: GraphBatch) -> LossParts:
        """The scalar to minimise; labels that are nan do not count."""
        ...

    def score(self) -> Likelihood:
        """The loss by which models are compared on held-out data, free of aids to training."""
        ...


class Posterior(Protocol):
    """A distribution over weights, as predictions use it and as a file stores it."""

    name: ClassVar[str]
    """Of its file and in the configuration."""

    @property
    def samples(self) -> int:
        """How many weight samples a prediction averages over."""
        ...

    def draw(self, samples: int, *, seed: int) -> Params:
        """Weight samples stacked along a leading dimension of length `samples`."""
        ...

    def tensors(self) -> Params:
        """Everything it is made of that is a tensor, for the file."""
        ...

    def options(self) -> dict[str, Any]:
        """The rest, JSON-able."""
        ...

    @classmethod
    def restore(cls, tensors: Params, options: Mapping[str, Any]) -> Self:
        """The posterior that `tensors` and `options` came from."""
        ...

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same on another device or in another precision."""
        ...


@runtime_checkable
class Shifted(Protocol):
    """A posterior whose weight samples come with energies of the elements, beside the references.

    They were fitted to training energies; see `bayrace.posterior.shifts`.
    """

    def shifts(self, samples: int, *, seed: int) -> Tensor | None:
        """Of the weights that `draw` gives for the same arguments: (M, Z) eV, float64.

        None where none were fitted; ValueError for samples whose shifts are not known.
        """
        ...


class Spread(NamedTuple):
    """Epistemic variances of a batch in closed form, in the batch's atom order."""

    energy: Tensor  # (S,) eV²
    forces: Tensor | None  # (N, 3, 3) (eV/Å)²
    stress: Tensor | None  # (S, 6, 6) (eV/Å³)², Voigt components


@runtime_checkable
class Noisy(Protocol):
    """A posterior that found the noise of the labels itself, for models that predict none."""

    def label_noise(self) -> Mapping[str, float]:
        """Standard deviations of "energy" (eV), "forces" (eV/Å), "stress" (eV/Å³) components.

        That of the stress is of its normal components; shear ones have 1/√2 of it.
        """
        ...


@runtime_checkable
class ClosedForm(Protocol):
    """A posterior whose predictive variances need no samples; its one sample is the mean."""

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
        """Variances of the predictions `outputs` that `model` makes with the mean `params`."""
        ...


@dataclass(frozen=True)
class Shape:
    """A piecewise-linear CDF of the standardised error z = (label - mean) / σ, from 0 to 1.

    Stands for the Gaussian's where a recalibration found another distribution.
    """

    z: tuple[float, ...]  # strictly ascending
    p: tuple[float, ...]  # strictly ascending from 0 to 1, of the same length

    def __post_init__(self) -> None:
        """Refuse what is no distribution function."""
        rising = all(a < b for values in (self.z, self.p) for a, b in pairwise(values))
        rising = rising and all(math.isfinite(value) for value in self.z)
        if len(self.z) != len(self.p) or len(self.z) < 2 or not rising:
            raise ValueError(
                f"{len(self.z)} z and {len(self.p)} p: a shape needs two ascending sequences of "
                "equal length, at least 2"
            )
        if self.p[0] != 0.0 or self.p[-1] != 1.0:
            raise ValueError(f"p runs from {self.p[0]} to {self.p[-1]}; it must be from 0 to 1")

    @property
    def symmetric(self) -> bool:
        """Whether z and -z are distributed alike."""
        odd = (abs(a + b) <= 1e-9 for a, b in zip(self.z, reversed(self.z), strict=True))
        even = (abs(a + b - 1) <= 1e-9 for a, b in zip(self.p, reversed(self.p), strict=True))
        return all(odd) and all(even)

    def cdf(self, z: Tensor) -> Tensor:
        """Probability of a standardised error below z, of any shape; nan stays nan."""
        return _interpolate(z, self.z, self.p)

    def quantile(self, p: Tensor) -> Tensor:
        """The standardised error that is exceeded with probability 1 - p."""
        return _interpolate(p, self.p, self.z)


@dataclass(frozen=True)
class Uncertain:
    """A mean with the variance of its noise and of our ignorance.

    For a scalar the two are variances of the mean's shape; for a vector of length d they are
    (..., d, d) covariances. Errors of each component are Gaussian unless `shape` says otherwise.
    `log_aleatoric` is the average over weight samples of log σ² of each one's noise, or of log det
    of its covariance, which the average of the noise itself does not tell; None where no noise is
    predicted.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    shape: Shape | None = None
    log_aleatoric: Tensor | None = None  # (...), without the dimension of a vector's components

    @property
    def total(self) -> Tensor:
        """Aleatoric plus epistemic, a variance or covariance."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """Standard deviation of each component, of the mean's shape."""
        return standard_deviation(self.total, like=self.mean)

    @property
    def level(self) -> Tensor:
        """One σ of a vector, the root mean square of its components': (...); a scalar's is `std`.

        It does not change when the vector turns.
        """
        if self.total.shape == self.mean.shape:
            return self.std
        return self.std.square().mean(-1).sqrt()

    def pit(self, label: Tensor) -> Tensor:
        """Probability given to values below the label, of the mean's shape; nan without a label.

        Uniform in 0..1 where the prediction is calibrated. Where σ is 0 it is 0, ½ or 1.
        """
        error = label - self.mean
        z = torch.where(error == 0, error, error / self.std)
        return torch.special.ndtr(z) if self.shape is None else self.shape.cdf(z)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds the label with this probability.

        Each is of the mean's shape.
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level={level}: an interval's probability is between 0 and 1")
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
        z = torch.special.ndtri(ends) if self.shape is None else self.shape.quantile(ends)
        low, high = z.tolist()
        std = self.std
        return self.mean + low * std, self.mean + high * std


@dataclass(frozen=True)
class Prediction:
    """The posterior predictive of a batch, in file order, references included, λ corrected."""

    energy: Uncertain  # (S,) eV, variances (S,)
    forces: Uncertain  # (N, 3) eV/Å, covariances (N, 3, 3)
    stress: Uncertain | None  # (S, 6) eV/Å³, covariances (S, 6, 6)
    atomic_energy: Tensor  # (N,) eV, references included
    owner: Tensor  # (N,) structure of each atom


def standard_deviation(variance: Tensor, *, like: Tensor) -> Tensor:
    """Square root of a variance, or of a covariance's diagonal, of the shape of `like`."""
    if variance.shape == like.shape:
        return variance.sqrt()
    return variance.diagonal(dim1=-2, dim2=-1).sqrt()


def log_determinant(covariance: Tensor) -> Tensor:
    """Of positive definite (..., d, d) matrices: (...); nan or -inf where one is not."""
    if covariance.shape[-1] != 3:
        return torch.logdet(covariance)
    x, y, z = covariance.unbind(-2)  # several times faster than a factorisation
    determinant: Tensor = (x * torch.linalg.cross(y, z)).sum(-1)
    return determinant.log()


def _interpolate(x: Tensor, knots: tuple[float, ...], values: tuple[float, ...]) -> Tensor:
    """Piecewise-linear in x, constant beyond the outermost knots."""
    at = torch.tensor(knots, dtype=x.dtype, device=x.device)
    value = torch.tensor(values, dtype=x.dtype, device=x.device)
    inside = x.clamp(knots[0], knots[-1])
    right = torch.searchsorted(at, inside.contiguous()).clamp(1, len(knots) - 1)
    left = right - 1
    fraction = (inside - at[left]) / (at[right] - at[left])
    return torch.lerp(value[left], value[right], fraction)
