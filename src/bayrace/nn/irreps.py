"""Irreducible representations of O(3), and their channel counts."""

from __future__ import annotations

import re
from typing import NamedTuple


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
VECTOR = Irrep(1, -1)
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
