"""What covariances of forces say: σ of atoms, and how likely a force is wrong by too much.

In compiled code (gaussian.c), where the many small operations of NumPy would cost more than a
prediction allows; in NumPy elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bayrace.nn.exponentials import load
from bayrace.nn.kernels import resolve

Array = NDArray[np.float64]


class Spreads(NamedTuple):
    """Of n covariances."""

    eigenvalues: Array  # (n, 3), the largest first
    components: Array  # (n, 3), σ of each component
    level: Array  # (n,) root mean square of these
    worst: Array  # (n,) σ in the worst direction


def compiled() -> bool:
    """Whether the compiled functions are there."""
    return resolve(load, "", 1, torch.float64, "cpu", "auto") == "fused"


def spreads(covariances: Array) -> Spreads:
    """Of covariances (n, 3, 3)."""
    if not compiled():
        values: Array = np.linalg.eigvalsh(covariances)[:, ::-1].astype(np.float64)
        components = np.sqrt(covariances.diagonal(axis1=1, axis2=2))
        level = np.sqrt((components**2).mean(1))
        return Spreads(values, components, level, np.sqrt(values[:, 0].clip(min=0.0)))
    held, count = np.ascontiguousarray(covariances), len(covariances)
    out = np.empty(8 * count)
    start, line = out.ctypes.data, count * out.itemsize
    _functions()["spreads"](
        count, held.ctypes.data, start, start + 3 * line, start + 6 * line, start + 7 * line
    )
    return _split(out, count)


@dataclass(frozen=True, eq=False)
class Directions:
    """Sets of directions to average over, (k, 3) squared components and (k,) weights each.

    The first set is taken whose `most` the ratio of the largest eigenvalue to the smallest does not
    exceed; the last is ∞.
    """

    most: Sequence[float]
    squares: Sequence[Array]
    weights: Sequence[Array]

    def assess(
        self, covariances: Array, error: float, negligible: float
    ) -> tuple[Spreads, Array, float]:
        """Of covariances (n, 3, 3) of Student's errors, in compiled code only.

        Beside the spreads P(|e| > error), (n,), and that of any one, as if they were independent.
        Where the bound by the largest eigenvalue is at most `negligible`, that is the result.
        """
        held, count = np.ascontiguousarray(covariances), len(covariances)
        out = np.empty(9 * count)
        any_one = _functions()["assess"](
            *(count, held.ctypes.data, error, negligible),
            *(len(self.most), *self.addresses[:4], out.ctypes.data),
        )
        return _split(out, count), out[8 * count :], any_one

    @cached_property
    def addresses(self) -> tuple[Any, ...]:
        """Of limits, counts and arrays as C has them, and what must live as long as they."""
        turned = (each.T for each in self.squares)  # directions side by side
        held = [np.ascontiguousarray(each) for each in (*turned, *self.weights)]
        count = len(self.most)
        limits = (ctypes.c_double * count)(*self.most)
        counts = (ctypes.c_long * count)(*map(len, self.weights))
        squares, weights = (
            (ctypes.c_void_p * count)(*(each.ctypes.data for each in part))
            for part in (held[:count], held[count:])
        )
        return limits, counts, squares, weights, held


def _split(out: Array, count: int) -> Spreads:
    """Arrays that compiled code has written one after another."""
    return Spreads(
        out[: 3 * count].reshape(count, 3),
        out[3 * count : 6 * count].reshape(count, 3),
        out[6 * count : 7 * count],
        out[7 * count : 8 * count],
    )


def _functions() -> dict[str, Any]:
    return load("", torch.float64, 0)
