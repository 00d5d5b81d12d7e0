"""Accuracy of the mean prediction: MAE, RMSE and R², overall, per element and per config_type.

Labels are only ever compared with predictions, never used to shift them. Missing labels (None or
nan) are left out; a nan among the predictions shows in the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayrace.core.prediction import Prediction
from bayrace.data.frame import Frame

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """Errors of one quantity over `count` numbers, in the quantity's unit; R² has none."""

    count: int
    mae: float
    rmse: float
    r2: float  # nan where the labels do not vary

    def to_json(self) -> dict[str, float | int | None]:
        """A JSON-able mapping; nan becomes None."""
        return {name: _finite(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Quantities:
    """Errors of each quantity; None where no frame carries its label."""

    energy: Errors | None  # eV, of whole structures
    energy_per_atom: Errors | None  # eV/atom
    forces: Errors | None  # eV/Å, components
    stress: Errors | None  # eV/Å³, Voigt components

    def to_json(self) -> dict[str, dict[str, float | int | None] | None]:
        """A JSON-able mapping."""
        return {name: _errors_json(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Accuracy:
    """Errors of a set of frames."""

    frames: int
    total: Quantities
    forces_by_element: Mapping[int, Errors]  # by atomic number, ascending
    by_config_type: Mapping[str, Quantities]

    def to_json(self) -> dict[str, object]:
        """A JSON-able mapping, in eV and Å."""
        elements = {str(z): _errors_json(value) for z, value in self.forces_by_element.items()}
        types = {name: value.to_json() for name, value in self.by_config_type.items()}
        return {
            "frames": self.frames,
            **self.total.to_json(),
            "forces_by_element": elements,
            "by_config_type": types,
        }


def accuracy(batches: Iterable[tuple[Sequence[Frame], Prediction]]) -> Accuracy:
    """Compare labels with the predictions of their frames, as `predict_frames` yields them.

    Keeps two numbers per label component, not the covariances, so a long stream is fine.
    """
    rows = [row for frames, prediction in batches for row in _rows(frames, prediction)]
    if not rows:
        raise ValueError("no frames to evaluate; give at least one")
    numbers = np.concatenate([row.numbers for row in rows])
    forces = _stack([row.forces for row in rows])
    known = [z for z in np.unique(numbers) if not np.isnan(forces[0][numbers == z]).all()]
    types = sorted({row.config_type for row in rows})
    return Accuracy(
        frames=len(rows),
        total=_quantities(rows),
        forces_by_element={
            int(z): errors(forces[0][numbers == z], forces[1][numbers == z]) for z in known
        },
        by_config_type={
            name: _quantities([row for row in rows if row.config_type == name]) for name in types
        },
    )


def errors(labels: Array, predictions: Array) -> Errors:
    """Errors of predictions of any shape; nan labels are left out."""
    if labels.shape != predictions.shape:
        raise ValueError(
            f"labels of shape {labels.shape} and predictions of shape {predictions.shape}: "
            "give both for the same atoms or structures"
        )
    present = ~np.isnan(labels)
    label = labels[present]
    if label.size == 0:
        raise ValueError("every label is missing; give frames that carry this label")
    error = predictions[present] - label
    squares = float(np.mean(error**2))
    variance = float(np.var(label))
    return Errors(
        count=label.size,
        mae=float(np.mean(np.abs(error))),
        rmse=math.sqrt(squares),
        r2=1.0 - squares / variance if variance > 0.0 else math.nan,
    )


Pair = tuple[Array, Array]  # label and prediction of one shape


@dataclass(frozen=True, eq=False)
class _Row:
    """Labels and predictions of one frame, nan where a label is missing."""

    numbers: NDArray[np.int64]
    config_type: str
    energy: Pair  # (1,)
    forces: Pair  # (n, 3)
    stress: Pair  # (1, 6)


def _rows(frames: Sequence[Frame], prediction: Prediction) -> list[_Row]:
    energy = prediction.energy.mean.numpy(force=True)
    if len(frames) != len(energy):
        raise ValueError(
            f"{len(frames)} frames and predictions of {len(energy)} structures; pass the frames "
            "the prediction was made for"
        )
    ends = np.cumsum([len(frame.numbers) for frame in frames])[:-1]
    forces = np.split(prediction.forces.mean.numpy(force=True), ends)
    missing = np.full((len(frames), 6), np.nan)
    with_stress = prediction.stress is not None
    stress = prediction.stress.mean.numpy(force=True) if prediction.stress else missing
    return [
        _Row(
            numbers=np.asarray(frame.numbers),
            config_type=frame.config_type,
            energy=_pair(frame.energy, energy[s : s + 1]),
            forces=_pair(frame.forces, forces[s]),
            stress=_pair(frame.stress if with_stress else None, stress[s : s + 1]),
        )
        for s, frame in enumerate(frames)
    ]


def _pair(label: float | Array | None, prediction: Array) -> Pair:
    value = np.nan if label is None else np.asarray(label, dtype=np.float64)
    return np.broadcast_to(value, prediction.shape), prediction.astype(np.float64)


def _quantities(rows: Sequence[_Row]) -> Quantities:
    energy = _stack([row.energy for row in rows])
    atoms = np.array([len(row.numbers) for row in rows], dtype=np.float64)
    return Quantities(
        energy=_errors_or_none(energy),
        energy_per_atom=_errors_or_none((energy[0] / atoms, energy[1] / atoms)),
        forces=_errors_or_none(_stack([row.forces for row in rows])),
        stress=_errors_or_none(_stack([row.stress for row in rows])),
    )


def _stack(pairs: Sequence[Pair]) -> Pair:
    return np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])


def _errors_or_none(pair: Pair) -> Errors | None:
    return None if np.isnan(pair[0]).all() else errors(*pair)


def _errors_json(value: Errors | None) -> dict[str, float | int | None] | None:
    return None if value is None else value.to_json()


def _finite(value: float) -> float | int | None:
    return value if math.isfinite(value) else None
