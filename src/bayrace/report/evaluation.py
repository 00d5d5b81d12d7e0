"""Compare a potential with labelled frames: errors, and the spread it predicted for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayrace.data.read import Frame
from bayrace.metrics.accuracy import Accuracy, accuracy
from bayrace.potential import Potential
from bayrace.predict import predict_frames
from bayrace.types import Prediction, Uncertain

Array = NDArray[np.float64]
Batches = Iterable[tuple[Sequence[Frame], Prediction]]


@dataclass(frozen=True, eq=False)
class Compared:
    """Labels beside predictions of one quantity; a missing label is nan."""

    label: Array  # (n, ...) in the quantity's unit
    mean: Array  # the same shape
    std: Array  # the same shape, total predicted standard deviation

    @property
    def error(self) -> Array:
        """Prediction minus label."""
        return self.mean - self.label

    def known(self) -> Compared:
        """Only the numbers that have a label, flattened."""
        known = ~np.isnan(self.label)
        return Compared(self.label[known], self.mean[known], self.std[known])

    def spread(self, chosen: NDArray[np.bool_] | None = None) -> float | None:
        """Root mean square of the predicted σ where labels exist; None if no noise is predicted.

        This is what the RMSE would be if the predicted σ were right.
        """
        part = self if chosen is None else Compared(*(v[chosen] for v in vars(self).values()))
        std = part.known().std
        return float(np.sqrt(np.mean(std**2))) if std.size and std.any() else None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A potential on one set of S frames with N atoms."""

    name: str
    accuracy: Accuracy
    atoms: NDArray[np.int64]  # (S,) atoms of each frame
    config_types: NDArray[np.str_]  # (S,)
    numbers: NDArray[np.int64]  # (N,) atomic numbers
    energy: Compared  # (S,) eV
    forces: Compared  # (N, 3) eV/Å
    stress: Compared  # (S, 6) eV/Å³

    @property
    def energy_per_atom(self) -> Compared:
        """(S,) eV/atom."""
        return Compared(*(value / self.atoms for value in vars(self.energy).values()))

    def to_json(self) -> dict[str, Any]:
        """JSON-able: errors, and the predicted σ (root mean square) of every quantity, eV and Å."""
        quantities = ("energy", "energy_per_atom", "forces", "stress")
        spreads = {name: getattr(self, name).spread() for name in quantities}
        return {"name": self.name, **self.accuracy.to_json(), "predicted_std": spreads}


def evaluate(
    potential: Potential,
    frames: Sequence[Frame],
    *,
    name: str,
    edge_budget: int = 20_000,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Predict every frame and compare; `progress` hears how many frames are done."""
    stress = any(frame.stress is not None and frame.pbc.all() for frame in frames)
    batches = predict_frames(
        potential.model,
        potential.folded,
        frames,
        references=potential.references,
        lambdas=potential.lambdas,
        stress=stress,
        edge_budget=edge_budget,
        progress=progress,
    )
    parts: list[_Part] = []
    return _join(name, accuracy(_watched(batches, parts)), frames, parts)


@dataclass(frozen=True, eq=False)
class _Part:
    """Comparisons of one batch."""

    energy: Compared
    forces: Compared
    stress: Compared


def _watched(batches: Batches, parts: list[_Part]) -> Iterator[tuple[Sequence[Frame], Prediction]]:
    """Pass batches on, keeping labels, means and σ of each in `parts`."""
    for frames, prediction in batches:
        energy = [math.nan if frame.energy is None else frame.energy for frame in frames]
        forces = [_or_nan(frame.forces, (len(frame.numbers), 3)) for frame in frames]
        stress = [_or_nan(frame.stress, (6,)) for frame in frames]
        parts.append(
            _Part(
                _compare(np.array(energy, dtype=np.float64), prediction.energy),
                _compare(np.concatenate(forces), prediction.forces),
                _compare(np.stack(stress), prediction.stress),
            )
        )
        yield frames, prediction


def _or_nan(label: Array | None, shape: tuple[int, ...]) -> Array:
    return np.full(shape, np.nan) if label is None else label


def _compare(label: Array, value: Uncertain | None) -> Compared:
    if value is None:
        missing = np.full_like(label, np.nan)
        return Compared(missing, missing, missing)
    mean, std = value.mean.numpy(force=True), value.std.numpy(force=True)
    label = np.where(np.isnan(mean), np.nan, label)  # stress of a structure without a cell
    return Compared(label, mean, std)


def _join(
    name: str, errors: Accuracy, frames: Sequence[Frame], parts: Sequence[_Part]
) -> Evaluation:
    def joined(quantity: str) -> Compared:
        pieces = [vars(getattr(part, quantity)) for part in parts]
        return Compared(*(np.concatenate([p[k] for p in pieces]) for k in ("label", "mean", "std")))

    return Evaluation(
        name=name,
        accuracy=errors,
        atoms=np.array([len(frame.numbers) for frame in frames], dtype=np.int64),
        config_types=np.array([frame.config_type for frame in frames], dtype=np.str_),
        numbers=np.concatenate([frame.numbers for frame in frames]),
        energy=joined("energy"),
        forces=joined("forces"),
        stress=joined("stress"),
    )
