"""References, scale and shift of a target, from the training frames alone.

With them the network has to learn numbers of order 1 around 0:

    sum             references of the elements by least squares; scale of what is left, by atom
    mean            no references; a shift of each element, whose mean over atoms is subtracted
    second_moment   references and shifts together: ⟨R²⟩ = Σ_i (c_Z + q_Z (|r_i − r_c|² + 1 Å²))
    norm            neither; the scale of a charge
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bayrace.core.target import Target
from bayrace.data.dataset import Dataset
from bayrace.data.frame import DataError, Floats, Frame, elements_of
from bayrace.data.reference import composition, element_energies, reference_energy

OWN_EXTENT = 1.0  # Å², see bayrace.models.race.pooling


class Statistics(NamedTuple):
    """What a network is told of its target."""

    scale: float  # in the target's unit, by what the pooling multiplies
    shift: tuple[float, ...]  # of each element, likewise


def target_references(frames: Sequence[Frame], target: Target) -> dict[int, float]:
    """What each element adds to a property of TRAINING frames, besides what a network says."""
    elements = elements_of(frames)
    if target.pooling in ("mean", "norm"):
        return dict.fromkeys(elements, 0.0)
    labelled, values = _labelled(frames, target)
    if target.pooling == "sum":
        solution = element_energies(labelled, values, elements=elements)
    else:
        both = np.hstack([composition(labelled, elements), _moments(labelled, elements)])
        solution = _least_squares(both, values)[: len(elements)]
    return dict(zip(elements, solution.tolist(), strict=True))


def target_statistics(train: Dataset, target: Target) -> Statistics:
    """Scale and shift of a property, from frames whose references are known."""
    frames, values = _labelled(train.frames, target)
    values = values - _reference_values(frames, train.references)
    elements = train.elements
    atoms = np.array([len(frame.numbers) for frame in frames], dtype=np.float64)
    if target.pooling == "sum":
        return Statistics(_size(values / np.sqrt(atoms)), (0.0,) * len(elements))
    if target.pooling == "norm":
        extent = np.sqrt(_moments(frames, elements).sum(1))  # √Σ_i |r_i|²
        return Statistics(_size(values / extent), (0.0,) * len(elements))
    if target.pooling == "mean":
        shift = element_energies(frames, values, elements=elements, mean=True)
        left = values - (composition(frames, elements) / atoms[:, None]) @ shift
        return Statistics(_size(left), tuple(shift.tolist()))
    moments = _moments(frames, elements)
    shift = _least_squares(moments, values)
    left = (values - moments @ shift) * np.sqrt(atoms) / moments.sum(1)
    return Statistics(_size(left), tuple(shift.tolist()))


def _labelled(frames: Sequence[Frame], target: Target) -> tuple[list[Frame], Floats]:
    found = [frame for frame in frames if frame.energy is not None]
    if not found:
        raise DataError(f"no training frame has a label for {target.name}; check target.key")
    return found, np.array([frame.energy for frame in found], dtype=np.float64)


def _reference_values(frames: Sequence[Frame], references: Mapping[int, float]) -> Floats:
    return np.array([reference_energy(frame.numbers, references) for frame in frames])


def _moments(frames: Sequence[Frame], elements: tuple[int, ...]) -> Floats:
    """Σ |r − r_c|² + 1 Å² over the atoms of each element, (S, Z), from the centre of charge."""
    rows = np.zeros((len(frames), len(elements)))
    for row, frame in zip(rows, frames, strict=True):
        centre = np.average(frame.positions, axis=0, weights=frame.numbers)
        squares = ((frame.positions - centre) ** 2).sum(1) + OWN_EXTENT
        np.add.at(row, np.searchsorted(elements, frame.numbers), squares)
    return rows


def _least_squares(matrix: Floats, values: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(matrix, values, rcond=None)[0], dtype=np.float64)


def _size(values: Floats) -> float:
    """Root mean square; 1 where there is nothing to learn."""
    size = float(np.sqrt(np.mean(values**2)))
    return size if size > 0 else 1.0
