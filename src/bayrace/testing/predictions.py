"""What every predictive distribution must satisfy: it turns, it permutes, it ignores its batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayrace.core.prediction import Prediction, Uncertain
from bayrace.data.frame import Frame
from bayrace.testing.rotations import random_turns, voigt_rotation
from bayrace.testing.structures import random_frame

_PARTS = ("aleatoric", "epistemic")


class Predictor(Protocol):
    """A `bayrace.Potential`, or anything that predicts as it does."""

    def predict(self, structures: Sequence[Frame], *, stress: bool) -> Prediction:
        """Predictive moments of frames, in their order."""
        ...


def check_predictions(
    predictor: Predictor,
    frame: Frame,
    *,
    definite: bool = True,
    tolerance: float = 1e-8,
    seed: int = 0,
) -> None:
    """Symmetries of means and of aleatoric and epistemic (co)variances, each on its own.

    Stress is included where the frame is periodic in all directions. Errors are relative to the
    largest value. `definite=False` allows total covariances to be singular, as those of few members
    without noise heads are.
    """
    random = np.random.default_rng(seed)
    stress = bool(frame.pbc.all())

    def predict(*frames: Frame) -> Prediction:
        return predictor.predict(frames, stress=stress)

    before = predict(frame)
    _check_covariances(before, definite=definite)
    for name, matrix in random_turns(random):
        moved = replace(frame, positions=frame.positions @ matrix.T, cell=frame.cell @ matrix.T)
        _compare(_turned(before, matrix), predict(moved), name, tolerance)
    away = replace(frame, positions=frame.positions + 10 * random.normal(size=3))
    _compare(before, predict(away), "translation", tolerance)
    order = random.permutation(len(frame.numbers))
    shuffled = replace(frame, positions=frame.positions[order], numbers=frame.numbers[order])
    _compare(_permuted(before, order), predict(shuffled), "permutation", tolerance)
    elements = tuple(int(z) for z in np.unique(frame.numbers))
    other = random_frame(elements, 5, seed=seed)
    together = predict(other, frame, other)
    _compare(before, _middle(together, len(other.numbers)), "joining a batch", tolerance)


def _check_covariances(prediction: Prediction, *, definite: bool) -> None:
    for quantity, value in _quantities(prediction):
        for part in (*_PARTS, "total"):
            matrices: Tensor = getattr(value, part)
            if quantity == "energy":
                matrices = matrices[:, None, None]
            name = f"{part} covariance of {quantity}"
            size = float(matrices.abs().max())
            skew = float((matrices - matrices.mT).abs().max())
            assert skew <= 1e-10 * size, f"{name} is not symmetric: {skew} of {size}"
            least = float(torch.linalg.eigvalsh(matrices).min())
            assert least >= -1e-10 * size, f"{name} has an eigenvalue of {least}, largest {size}"
            if part == "total" and definite:
                assert least > 0, f"{name} is not positive definite: eigenvalue {least}"


def _quantities(prediction: Prediction) -> Iterator[tuple[str, Uncertain]]:
    for name in ("energy", "forces", "stress"):
        value: Uncertain | None = getattr(prediction, name)
        if value is not None:
            yield name, value


def _turned(prediction: Prediction, matrix: npt.NDArray[np.float64]) -> Prediction:
    stress = prediction.stress
    return replace(
        prediction,
        forces=_moved(prediction.forces, torch.from_numpy(np.ascontiguousarray(matrix))),
        stress=None if stress is None else _moved(stress, voigt_rotation(matrix)),
    )


def _moved(value: Uncertain, by: Tensor) -> Uncertain:
    """The distribution of by @ x."""
    parts = {part: by @ getattr(value, part) @ by.T for part in _PARTS}
    return replace(value, mean=value.mean @ by.T, **parts)


def _permuted(prediction: Prediction, order: npt.NDArray[np.int64]) -> Prediction:
    return replace(
        prediction,
        forces=_taken(prediction.forces, order),
        atomic_energy=prediction.atomic_energy[order],
        atomic_epistemic=_rows(prediction.atomic_epistemic, order),
    )


def _middle(prediction: Prediction, around: int) -> Prediction:
    """That of the second of three structures, whose neighbours have `around` atoms each."""
    atoms, one = np.arange(around, len(prediction.structure_index) - around), np.array([1])
    stress = prediction.stress
    return replace(
        prediction,
        energy=_taken(prediction.energy, one),
        forces=_taken(prediction.forces, atoms),
        stress=None if stress is None else _taken(stress, one),
        atomic_energy=prediction.atomic_energy[atoms],
        atomic_epistemic=_rows(prediction.atomic_epistemic, atoms),
    )


def _rows(values: Tensor | None, places: npt.NDArray[np.int64]) -> Tensor | None:
    return None if values is None else values[places]


def _taken(value: Uncertain, places: npt.NDArray[np.int64]) -> Uncertain:
    parts = {part: getattr(value, part)[places] for part in ("mean", *_PARTS)}
    return replace(value, **parts)


def _compare(expected: Prediction, actual: Prediction, move: str, tolerance: float) -> None:
    found = dict(_quantities(actual))
    for name, value in _quantities(expected):
        assert name in found, f"{name} is missing after {move}"
        for part in ("mean", *_PARTS):
            _close(
                getattr(value, part), getattr(found[name], part), f"{part} {name}", move, tolerance
            )
    _close(expected.atomic_energy, actual.atomic_energy, "atomic energy", move, tolerance)
    local = expected.atomic_epistemic, actual.atomic_epistemic
    if local[0] is not None and local[1] is not None:
        _close(local[0], local[1], "variance of atomic energies", move, tolerance)


def _close(expected: Tensor, actual: Tensor, name: str, move: str, tolerance: float) -> None:
    size = float(expected.abs().max().clamp(min=1e-12))
    error = float((actual - expected).abs().max()) / size
    assert error < tolerance, f"{name} after {move}: relative error {error}"
