"""Irreducible representations of O(3), their channel counts, and real Clebsch–Gordan tables."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayrace.nn.tables import outside_transforms


class Irrep(NamedTuple):
    """Degree l and parity p = ±1; 2l + 1 components."""

    l: int  # noqa: E741 (the physicist's letter)
    p: int

    @property
    def dim(self) -> int:
        """Number of components."""
        return 2 * self.l + 1

    def __str__(self) -> str:
        return f"{self.l}{'e' if self.p > 0 else 'o'}"


def read_irreps(text: str) -> tuple[Irrep, ...]:
    """From '0e+1o' as `"+".join(map(str, irreps))` writes it."""
    return tuple(Irrep(int(term[:-1]), 1 if term[-1] == "e" else -1) for term in text.split("+"))


SCALAR = Irrep(0, 1)
QUADRUPOLE = Irrep(2, 1)

Channels = dict[Irrep, int]
"""How many channels of each irrep a feature has, in ascending (l, -p) order."""


def parse_irreps(text: str) -> Channels:
    """Read '64x0e+64x0o+32x1o'; also '64x(0,1,2)' for both parities of each degree."""
    found: Channels = {}
    for term in text.replace(" ", "").split("+"):
        both = re.fullmatch(r"(\d+)x\(([\d,]+)\)", term)
        single = re.fullmatch(r"(\d+)x(\d)([eo])", term)
        if both:
            degrees = [int(degree) for degree in both[2].split(",")]
            additions = [(Irrep(degree, p), int(both[1])) for degree in degrees for p in (1, -1)]
        elif single:
            additions = [(Irrep(int(single[2]), 1 if single[3] == "e" else -1), int(single[1]))]
        else:
            raise ValueError(
                f"irreps {text!r}: cannot read {term!r}; write for example '32x0e+32x1o+32x2e'"
            )
        for irrep, count in additions:
            found[irrep] = found.get(irrep, 0) + count
    return {irrep: found[irrep] for irrep in sorted(found, key=lambda i: (i.l, -i.p))}


@cache
def clebsch_gordan(l1: int, l2: int, l3: int) -> NDArray[np.float64]:
    """Real coupling table (2l1+1, 2l2+1, 2l3+1) that maps unit-variance components to the same."""
    from e3nn.o3 import wigner_3j  # slow to import, needed only for tables
    from torch import float64

    with outside_transforms():
        table: NDArray[np.float64] = wigner_3j(l1, l2, l3, dtype=float64).numpy()
    return table * math.sqrt(2 * l3 + 1)
