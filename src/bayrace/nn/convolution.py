"""The edge convolution, the one operation that bounds everything, behind one seam.

out[n, row, c] = Σ over edges e into n of R[pair(e), k, c] Σ_{m1, m2} CG x[sender(e), m1, c] Y[e, m2]

for every path k = (input irrep, l2, output irrep). Rows are ordered by output irrep, then m3, then
path, so that the slice of one irrep is a view of shape (N, 2l + 1, paths · C).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor

from bayrace.nn.irreps import Irrep, clebsch_gordan
from bayrace.types import GraphBatch

Kernel = Literal["auto", "plain", "fused"]


Path = tuple[Irrep, int, Irrep]
"""Input irrep, degree of the harmonic, output irrep."""


@dataclass(frozen=True)
class Plan:
    """The paths of a convolution and where their numbers lie."""

    inputs: tuple[Irrep, ...]
    l_max: int
    outputs: tuple[Irrep, ...]

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Every allowed path, grouped by output irrep; a path's index is its row of R."""
        return tuple(
            (source, degree, target)
            for target in self.outputs
            for source in self.inputs
            for degree in range(self.l_max + 1)
            if abs(source.l - degree) <= target.l <= source.l + degree
            and source.p * (-1) ** degree == target.p
        )

    @cached_property
    def input_offset(self) -> dict[Irrep, int]:
        """First component of each input irrep in x."""
        return _offsets({irrep: irrep.dim for irrep in self.inputs})

    @cached_property
    def input_dim(self) -> int:
        return sum(irrep.dim for irrep in self.inputs)

    def path_count(self, target: Irrep) -> int:
        return sum(path[2] == target for path in self.paths)

    @cached_property
    def output_offset(self) -> dict[Irrep, int]:
        """First row of each output irrep."""
        return _offsets({irrep: irrep.dim * self.path_count(irrep) for irrep in self.outputs})

    @cached_property
    def rows(self) -> int:
        return sum(irrep.dim * self.path_count(irrep) for irrep in self.outputs)

    def split(self, out: Tensor) -> dict[Irrep, Tensor]:
        """Views (N, 2l + 1, paths · C) of the output for each output irrep that has a path."""
        views = {}
        for irrep in self.outputs:
            count, start = self.path_count(irrep), self.output_offset[irrep]
            if count:
                rows = out[..., start : start + irrep.dim * count, :]
                views[irrep] = rows.reshape(*out.shape[:-2], irrep.dim, count * out.shape[-1])
        return views


def convolve(
    plan: Plan,
    features: Tensor,
    harmonics: Tensor,
    radial: Tensor,
    batch: GraphBatch,
    *,
    kernel: Kernel = "auto",
) -> Tensor:
    """Messages summed over neighbours.

    Args:
        plan: the paths.
        features: x, (N, plan.input_dim, C).
        harmonics: Y, (E, (plan.l_max + 1)²).
        radial: R, (P, paths, C), one row per undirected pair.
        batch: the graph; edges sorted by receiver.
        kernel: which implementation; `auto` takes the fastest that is available.

    Returns:
        (N, plan.rows, C)
    """
    return convolve_plain(plan, features, harmonics, radial, batch)


def convolve_plain(
    plan: Plan, features: Tensor, harmonics: Tensor, radial: Tensor, batch: GraphBatch
) -> Tensor:
    """The definition in plain PyTorch; every other kernel is tested against it."""
    receiver, sender = batch.edges
    sent, weight = features[sender], radial[batch.pair]
    groups: dict[Irrep, list[Tensor]] = {irrep: [] for irrep in plan.outputs}
    for k, (source, degree, target) in enumerate(plan.paths):
        start = plan.input_offset[source]
        table = _table(source.l, degree, target.l, features.dtype, features.device)
        angular = harmonics[:, degree**2 : (degree + 1) ** 2]  # (E, m2)
        coupling = torch.einsum("eb,abc->eca", angular, table)  # (E, m3, m1)
        message = coupling @ sent[:, start : start + source.dim]  # (E, m3, C)
        groups[target].append(message * weight[:, k, None])
    rows = [torch.stack(group, dim=2).flatten(1, 2) for group in groups.values() if group]
    messages = torch.cat(rows, dim=1)
    empty = messages.new_zeros(features.shape[0], plan.rows, features.shape[2])
    return empty.index_add(0, receiver, messages)


def _offsets(sizes: dict[Irrep, int]) -> dict[Irrep, int]:
    offsets, start = {}, 0
    for irrep, size in sizes.items():
        offsets[irrep] = start
        start += size
    return offsets


@lru_cache(maxsize=None)
def _table(l1: int, l2: int, l3: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(clebsch_gordan(l1, l2, l3), dtype=dtype, device=device)
