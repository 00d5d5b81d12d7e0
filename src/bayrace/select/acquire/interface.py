"""What an acquisition is: numbers of every structure of a pool, and an order to take them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayrace.core.prediction import Prediction
from bayrace.predict.predict import Uncertainty

Array = NDArray[np.float64]
Descriptors = NDArray[np.float32]
OverAtoms = Literal["mean", "max", "sum"]
"""How the numbers of atoms become one of their structure."""


class AcquisitionError(ValueError):
    """An acquisition that this potential or pool does not allow; the message says which does."""


@dataclass(frozen=True)
class Needs:
    """What an acquisition must be told of a pool."""

    prediction: Uncertainty  # "none": not even a mean
    features: bool = False  # last-layer features of pool and training structures
    descriptors: bool = False  # the geometry, for distances between structures


@dataclass(frozen=True, eq=False)
class Pool:
    """What is kept of P structures, and of the T that were trained on.

    `free` is False where a structure must not be taken (any more). Whoever takes from an `order`
    keeps it up to date between one pick and the next.
    """

    columns: Mapping[str, Array]  # (P,) each, as `measure` gave them
    free: NDArray[np.bool_]  # (P,)
    features: Array | None = None  # (P, D), summed over atoms
    known_features: Array | None = None  # (T, D)
    descriptors: Descriptors | None = None  # (P, G), Euclidean distances mean something
    known_descriptors: Descriptors | None = None  # (T, G)

    def __len__(self) -> int:
        return len(self.free)


class Pick(NamedTuple):
    """A structure that is taken next."""

    place: int  # in the pool
    score: float  # what it is taken for, larger is better
    by: str  # name of that number


class Acquisition(Protocol):
    """A way to choose; `bayrace.select.acquire.ACQUISITIONS` names them all.

    A frozen dataclass: its fields are its options, the section `select.NAME` of configurations,
    and the first line of its documentation is shown where ways are listed.
    """

    name: ClassVar[str]
    needs: ClassVar[Needs]

    def measure(self, prediction: Prediction, *, over_atoms: OverAtoms) -> dict[str, Tensor]:
        """Numbers (S,) by name of each structure of a batch, from predictions as needed."""
        ...

    def order(self, pool: Pool, *, seed: int) -> Iterator[Pick]:
        """Free structures in the order they should be taken, until there are none."""
        ...


def descending(pool: Pool, *names: str) -> Iterator[Pick]:
    """By the highest free number of each column in turn, so that n columns share evenly."""
    orders = {name: iter(np.argsort(-pool.columns[name], kind="stable")) for name in names}
    while pool.free.any():
        for name, order in orders.items():
            index = next((int(place) for place in order if pool.free[place]), None)
            if index is None:
                return
            yield Pick(index, float(pool.columns[name][index]), name)


def best(pool: Pool, scores: Array) -> int | None:
    """The free structure of the highest score; None if none is free."""
    if not pool.free.any():
        return None
    return int(np.argmax(np.where(pool.free, scores, -np.inf)))


def reduce_over_atoms(
    values: Tensor, owner: Tensor, structures: int, *, over_atoms: OverAtoms
) -> Tensor:
    """Numbers of atoms (N,) as one of each structure (S,)."""
    zero = values.new_zeros(structures)
    if over_atoms == "max":
        return zero.scatter_reduce(0, owner, values, "amax", include_self=False)
    total = zero.index_add(0, owner, values)
    if over_atoms == "sum":
        return total
    return total / zero.index_add(0, owner, values.new_ones(len(values)))


def require_spread(columns: Sequence[Array], name: str) -> None:
    """Refuse to choose by numbers that are all zero."""
    if max((float(np.abs(column).max(initial=0.0)) for column in columns), default=0.0) < 1e-12:
        raise AcquisitionError(
            f"{name}: every structure scores 0, as this potential knows no uncertainty to choose "
            "by; train an ensemble (bayrace train --members 5), attach a posterior (bayrace fit "
            "--posterior llpr), or choose by farthest, diverse or random"
        )
