"""What a rotation or reflection does to stresses in Voigt order, and a random one of each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]


def random_turns(random: np.random.Generator) -> Iterator[tuple[str, Floats]]:
    """A rotation and a reflection, (3, 3) each, with their names."""
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    proper = turn * np.linalg.det(turn)
    yield "rotation", proper
    yield "reflection", -proper


def stress_tensor(voigt: Floats) -> Floats:
    """The symmetric (3, 3) matrix of six Voigt components."""
    xx, yy, zz, yz, xz, xy = voigt
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def voigt_rotation(matrix: Floats) -> Tensor:
    """The (6, 6) matrix that turns Voigt components as `matrix` (3, 3) turns vectors."""
    columns = []
    for unit in np.eye(6):
        turned = matrix @ stress_tensor(unit) @ matrix.T
        columns.append([turned[i, j] for i, j in ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))])
    return torch.tensor(np.array(columns).T)
