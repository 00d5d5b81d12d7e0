"""Energy shifts: the energy of each element that training energies give to every weight sample.

Nearly every weight moves the energies of all structures together, and a Gaussian over weights does
not know how stiff that one direction is: its samples differ by a constant that is many times their
disagreement about anything else. As SWAG re-estimates the statistics of batch normalisation for
each of its samples, we re-estimate this constant: by minimum-norm least squares of the TRAINING
energies' residuals on the composition, one number per element, sample and mean. Forces and stress
do not change.

A shift belongs to one sample. The file therefore holds those of the samples that predictions draw,
the first `samples` of SEED; `draw` gives weights for every other number and seed too, and the
shifts of those are refused, not guessed: `with_shifts` fits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.core.protocols import Model, Posterior
from bayrace.core.target import target_of
from bayrace.data.dataset import Dataset, edge_batches
from bayrace.data.reference import element_energies, reference_energy
from bayrace.train import checkpoint

SEED = 0
"""Of the weight samples that predictions use: the same file always predicts the same."""

_GROUP = "shift"  # of the file's tensors
_EDGES = 20_000  # of a batch


@dataclass(frozen=True, eq=False)
class Shifts:
    """Energies of the elements for the mean and for each sample, in the model's order of them."""

    mean: Tensor  # (Z,) eV, float64
    samples: Tensor  # (M, Z) eV, float64, of the first M samples of SEED

    def of(self, samples: int, *, seed: int) -> Tensor:
        """(samples, Z) eV, of the first ones of a seed."""
        known = self.samples.shape[0]
        if seed != SEED or samples > known:
            raise ValueError(
                f"samples={samples}, seed={seed}: energy shifts are known of the first {known} "
                f"samples of seed {SEED}; bayrace.posterior.shifts.with_shifts fits them to more"
            )
        return self.samples[:samples]

    def tensors(self) -> Params:
        """Under names of their own in a posterior's file."""
        return checkpoint.flatten({_GROUP: {"mean": self.mean, "samples": self.samples}})

    def to(self, device: torch.device | str | None) -> Shifts:
        """On another device; the precision is always float64."""
        return Shifts(self.mean.to(device), self.samples.to(device))

    @staticmethod
    def restore(tensors: Params) -> Shifts | None:
        """From the tensors of a posterior's file; None where it has none, as older ones."""
        stored = checkpoint.group(tensors, _GROUP)
        return Shifts(stored["mean"], stored["samples"]) if stored else None


class Centred(Posterior, Protocol):
    """A posterior around mean weights that can hold shifts."""

    @property
    def mean(self) -> Params:
        """Its mean, without a leading dimension."""
        ...

    def shifted(self, shifts: Shifts | None) -> Self:
        """The same weights with these shifts."""
        ...


_C = TypeVar("_C", bound=Centred)


class Shifted(Centred, Protocol):
    """One that may hold them."""

    @property
    def energy_shifts(self) -> Shifts | None:
        """Its shifts."""
        ...


_S = TypeVar("_S", bound=Shifted)


def moved(
    posterior: _S,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> _S:
    """The posterior on another device or in another precision; that of its shifts stays."""
    shifts = posterior.energy_shifts
    tensors = posterior.shifted(None).tensors()
    there = {name: value.to(device=device, dtype=dtype) for name, value in tensors.items()}
    return posterior.restore(there, posterior.options()).shifted(shifts and shifts.to(device))


def with_shifts(
    posterior: _C,
    model: Model,
    train: Dataset,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> _C:
    """The posterior with shifts for its mean and for the samples that predictions use.

    `progress` hears of training structures done, of all samples together.
    """
    count = posterior.samples
    found = []
    for done, params in enumerate(_all(posterior)):
        found.append(mean_shift(model, params, train))
        progress(len(train) * (done + 1) // (count + 1))
    return posterior.shifted(Shifts(found[0], torch.stack(found[1:])))


def mean_shift(model: Model, params: Params, train: Dataset) -> Tensor:
    """The shift of one set of weights, (Z,) eV, float64."""
    pooling = target_of(model).pooling
    labelled = [k for k, frame in enumerate(train.frames) if frame.energy is not None]
    frames = [train.frames[k] for k in labelled]
    labels = [
        float(frame.energy or 0.0) - reference_energy(frame.numbers, train.references)
        for frame in frames
    ]
    residuals = np.array(labels, dtype=np.float64) - _energies(model, params, train)[labelled]
    if pooling not in ("sum", "mean"):  # nothing that is common to all structures
        return torch.zeros(len(train.elements), dtype=torch.float64)
    mean = pooling == "mean"
    fitted = element_energies(frames, residuals, elements=train.elements, mean=mean)
    return torch.from_numpy(fitted).to(next(iter(params.values())).device)


@torch.no_grad()
def _energies(model: Model, params: Params, train: Dataset) -> np.ndarray:
    """Of all structures, (S,) eV, references not included."""
    batches = edge_batches(train, like=params, edges=_EDGES)
    parts = [model.energy(params, batch).energy.double().cpu() for batch, _ in batches]
    return torch.cat(parts).numpy()


def _all(posterior: Centred) -> Iterator[Params]:
    """The mean, then each sample of predictions."""
    yield posterior.mean
    drawn = posterior.draw(posterior.samples, seed=SEED)
    for index in range(posterior.samples):
        yield {name: value[index] for name, value in drawn.items()}
