"""Labels of several frames as arrays, nan where one is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bayrace.data.frame import Floats, Frame


class LabelArrays(NamedTuple):
    """Of S frames with N atoms, one after another."""

    energy: Floats  # (S,) eV
    forces: Floats  # (N, 3) eV/Å
    stress: Floats  # (S, 6) eV/Å³, Voigt components


def label_arrays(frames: Sequence[Frame]) -> LabelArrays:
    """The labels of frames in their order, at least one frame."""
    energy = [math.nan if frame.energy is None else frame.energy for frame in frames]
    forces = [_or_nan(frame.forces, (len(frame.numbers), 3)) for frame in frames]
    stress = [_or_nan(frame.stress, (6,)) for frame in frames]
    return LabelArrays(np.array(energy, dtype=np.float64), np.concatenate(forces), np.stack(stress))


def _or_nan(label: Floats | None, shape: tuple[int, ...]) -> Floats:
    return np.full(shape, np.nan) if label is None else label
