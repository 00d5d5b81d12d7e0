"""Products of a feature with itself: every coupling of A ⊗ A that ends in a wanted irrep."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayrace.nn.irreps import Irrep, clebsch_gordan
from bayrace.nn.tables import constant


@dataclass(frozen=True)
class SelfProduct:
    """Symmetric couplings of irreps with themselves.

    Rows of the result are ordered by output irrep, then component, then coupling.
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

    def __call__(self, x: Tensor) -> dict[Irrep, Tensor]:
        """From x (N, M, C) to {irrep: (N, 2l + 1, couplings · C)}."""
        first, second, table = constant(self, x, lambda dtype, device: _table(self, dtype, device))
        components = x.transpose(0, 1)  # (M, N, C): one matrix product for all atoms
        products = components[first] * components[second]
        rows = (table @ products.flatten(1)).reshape(-1, *x.shape[::2])  # (rows, N, C)
        result, start = {}, 0
        for target in self.outputs:
            count = len(self.couplings(target))
            if count:
                block = rows[start : start + target.dim * count]
                spread = block.reshape(target.dim, count, *x.shape[::2]).permute(2, 0, 1, 3)
                result[target] = spread.flatten(2)
            start += target.dim * count
        return result


def _table(
    product: SelfProduct, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of the products x_a x_b (a ≤ b) and the matrix (rows, products) on them."""
    offsets, size = {}, 0
    for irrep in product.inputs:
        offsets[irrep] = size
        size += irrep.dim
    dense = torch.zeros(0, size, size, dtype=torch.float64)
    for target in product.outputs:
        blocks = []
        for first, second in product.couplings(target):
            block = torch.zeros(target.dim, size, size, dtype=torch.float64)
            table = torch.from_numpy(clebsch_gordan(first.l, second.l, target.l))
            a, b = offsets[first], offsets[second]
            block[:, a : a + first.dim, b : b + second.dim] = table.permute(2, 0, 1)
            blocks.append(block)
        if blocks:
            dense = torch.cat([dense, torch.stack(blocks, dim=1).flatten(0, 1)])
    first_index, second_index = torch.triu_indices(size, size)
    symmetric = dense + dense.mT
    packed = symmetric[:, first_index, second_index]
    packed[:, first_index == second_index] *= 0.5
    used = packed.abs().amax(0) > 1e-12
    first_index, second_index, packed = first_index[used], second_index[used], packed[:, used]
    return first_index.to(device), second_index.to(device), packed.to(dtype=dtype, device=device)
