"""Products of a feature with itself: every coupling of A ⊗ A that ends in a wanted irrep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from bayrace.nn.coupling import clebsch_gordan
from bayrace.nn.irreps import Irrep, read_irreps
from bayrace.nn.plan import split_rows
from bayrace.nn.tables import constant

Term = tuple[int, int, float]
"""Components a ≤ b of x, and the coefficient of x_a x_b."""


@dataclass(frozen=True)
class SelfProduct:
    """Symmetric couplings of irreps with themselves.

    Rows of the result are ordered by output irrep, then component, then coupling, so that the
    slice of one irrep is a view of shape (N, 2l + 1, couplings · C).
    """

    inputs: tuple[Irrep, ...]
    outputs: tuple[Irrep, ...]

    def couplings(self, target: Irrep) -> list[tuple[Irrep, Irrep]]:
        """Unordered pairs of inputs whose symmetric product contains the target."""
        return [
            (first, second)
            for i, first in enumerate(self.inputs)
            for second in self.inputs[i:]
            if abs(first.l - second.l) <= target.l <= first.l + second.l
            and first.p * second.p == target.p
            and (first != second or (target.l % 2 == 0))  # odd degrees of A ⊗ A are antisymmetric
        ]

    @cached_property
    def input_dim(self) -> int:
        """Components of x."""
        return sum(irrep.dim for irrep in self.inputs)

    @cached_property
    def rows(self) -> int:
        """Components of all couplings."""
        return len(self.terms)

    @cached_property
    def terms(self) -> tuple[tuple[Term, ...], ...]:
        """What each row sums."""
        offsets, size = {}, 0
        for irrep in self.inputs:
            offsets[irrep] = size
            size += irrep.dim
        rows: list[tuple[Term, ...]] = []
        for target in self.outputs:
            pairs = self.couplings(target)
            tables = [clebsch_gordan(first.l, second.l, target.l) for first, second in pairs]
            for m3 in range(target.dim):
                for (first, second), table in zip(pairs, tables, strict=True):
                    row: dict[tuple[int, int], float] = {}
                    for m1 in range(first.dim):
                        for m2 in range(second.dim):
                            a, b = sorted((offsets[first] + m1, offsets[second] + m2))
                            row[a, b] = row.get((a, b), 0.0) + float(table[m1, m2, m3])
                    kept = [(a, b, c) for (a, b), c in sorted(row.items()) if abs(c) > 1e-12]
                    rows.append(tuple(kept))
        return tuple(rows)

    def split(self, out: Tensor) -> dict[Irrep, Tensor]:
        """Views (N, 2l + 1, couplings · C) of the rows for each output irrep that has any."""
        return split_rows(out, {irrep: len(self.couplings(irrep)) for irrep in self.outputs})

    @cached_property
    def key(self) -> str:
        """The product as text, for operators that take only tensors and strings."""
        return ">".join("+".join(map(str, side)) for side in (self.inputs, self.outputs))


@cache
def parse_product(key: str) -> SelfProduct:
    """The product whose `key` this is."""
    inputs, outputs = key.split(">")
    return SelfProduct(read_irreps(inputs), read_irreps(outputs))


def square_plain(product: SelfProduct, x: Tensor) -> Tensor:
    """From x (N, M, C) to (N, rows, C) in plain PyTorch."""
    key = product.key
    first, second, table = constant(
        ("square", key), x, lambda dtype, device: _table(parse_product(key), dtype, device)
    )
    components = x.transpose(0, 1)  # (M, N, C): one matrix product for all atoms
    products = components[first] * components[second]
    rows = (table @ products.flatten(1)).reshape(len(table), *x.shape[::2])
    return rows.transpose(0, 1)


def _table(
    product: SelfProduct, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of the products x_a x_b (a ≤ b) and the matrix (rows, products) on them."""
    pairs = sorted({(a, b) for terms in product.terms for a, b, _ in terms})
    place = {pair: column for column, pair in enumerate(pairs)}
    table = torch.zeros(product.rows, len(pairs), dtype=torch.float64)
    for row, terms in enumerate(product.terms):
        for a, b, coefficient in terms:
            table[row, place[a, b]] = coefficient
    first, second = (
        torch.tensor([pair[side] for pair in pairs], dtype=torch.int64, device=device)
        for side in (0, 1)
    )
    return first, second, table.to(dtype=dtype, device=device)
