"""Do energies and forces belong together: ΔE of two like structures is the work of the forces.

Between two frames the work is −½(F₁ + F₂)·Δx, exact for springs however long the way. Molecules are
first laid upon each other (Kabsch 1976).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bayrace.data.frame import Floats, Frame

_MOST = 120  # frames of one composition that are compared
_CLOSEST = 100  # pairs that count
_FEW = 15


@dataclass(frozen=True)
class Work:
    """Energy differences beside the work of the forces, of the closest pairs of frames."""

    ratio: float  # ΔE over work, root mean squares; negative where they oppose each other
    correlation: float
    pairs: int


def energy_and_work(frames: Sequence[Frame]) -> Work | None:
    """Compare them; None where there are too few pairs of the same atoms in the same cell."""
    found = [values for alike in _groups(frames) for values in _compared(alike)]
    if not found:
        return None
    table = np.concatenate(found)  # (P, 3) distance Å, work eV, ΔE eV
    table = table[np.argsort(table[:, 0], kind="stable")][:_CLOSEST]
    work, change = table[:, 1], table[:, 2]
    squares = float(np.sqrt((work @ work) * (change @ change)))
    if len(table) < _FEW or squares == 0.0:
        return None
    correlation = float(work @ change) / squares
    size = float(np.sqrt((change @ change) / (work @ work)))
    return Work(float(np.copysign(size, correlation)), correlation, len(table))


def _groups(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Frames of the same atoms in the same order and cell, some of each."""
    groups: dict[tuple[bytes, bytes, bytes], list[Frame]] = {}
    for frame in frames:
        if frame.forces is not None and frame.energy is not None and len(frame.numbers) > 1:
            cell = np.round(frame.cell * frame.pbc[:, None], 4) + 0.0
            key = (frame.numbers.tobytes(), frame.pbc.tobytes(), cell.tobytes())
            groups.setdefault(key, []).append(frame)
    for alike in groups.values():
        yield alike[:: -(-len(alike) // _MOST)]


def _compared(frames: Sequence[Frame]) -> Iterator[Floats]:
    """(P, 3) for each frame and all that follow it."""
    positions = np.stack([frame.positions for frame in frames])
    forces = np.stack([np.asarray(frame.forces) for frame in frames])
    energies = np.array([frame.energy for frame in frames], dtype=np.float64)
    free = not frames[0].pbc.any()
    if free:
        positions = positions - positions.mean(axis=1, keepdims=True)
    for place in range(len(frames) - 1):
        there, pull = positions[place + 1 :], forces[place + 1 :]
        if free:
            turn = _rotations(there, positions[place])
            there, pull = there @ turn, pull @ turn
        way = there - positions[place]
        if not free:
            way = _nearest_image(way, frames[0])
        work = -0.5 * np.einsum("mni,mni->m", forces[place] + pull, way)
        distance = np.sqrt(np.mean(way**2, axis=(1, 2)))
        yield np.stack([distance, work, energies[place + 1 :] - energies[place]], axis=1)


def _rotations(there: Floats, here: Floats) -> Floats:
    """(m, 3, 3) which turn each of (m, n, 3) onto (n, 3)."""
    left, _, right = np.linalg.svd(np.einsum("mni,nj->mij", there, here))
    left[:, :, 2] *= np.linalg.det(left @ right)[:, None]  # no mirrors
    return np.asarray(left @ right)


def _nearest_image(way: Floats, frame: Frame) -> Floats:
    cell = np.where(frame.pbc[:, None], frame.cell, np.eye(3))
    scaled = way @ np.linalg.inv(cell)
    return np.asarray((scaled - np.where(frame.pbc, np.round(scaled), 0.0)) @ cell)
