"""The plan of an edge convolution: its paths and where their numbers lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from bayrace.nn.irreps import Irrep, read_irreps
from bayrace.nn.tables import compute_properties

Path = tuple[Irrep, int, Irrep]
"""Input irrep, degree of the harmonic, output irrep."""


@dataclass(frozen=True)
class Plan:
    """The paths of a convolution and where their numbers lie."""

    inputs: tuple[Irrep, ...]
    l_max: int
    outputs: tuple[Irrep, ...]

    def __post_init__(self) -> None:
        compute_properties(self)

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
        """Components of x."""
        return sum(irrep.dim for irrep in self.inputs)

    @property
    def harmonics_dim(self) -> int:
        """Components of Y."""
        return (self.l_max + 1) ** 2

    def path_count(self, target: Irrep) -> int:
        """Paths that end in this output irrep."""
        return sum(path[2] == target for path in self.paths)

    @cached_property
    def output_offset(self) -> dict[Irrep, int]:
        """First row of each output irrep."""
        return _offsets({irrep: irrep.dim * self.path_count(irrep) for irrep in self.outputs})

    @cached_property
    def rows(self) -> int:
        """Rows of the output: m3 of every path."""
        return sum(irrep.dim * self.path_count(irrep) for irrep in self.outputs)

    @cached_property
    def path_rows(self) -> tuple[tuple[int, ...], ...]:
        """The output row of each m3 of each path."""
        seen = dict.fromkeys(self.outputs, 0)
        rows = []
        for _, _, target in self.paths:
            start, count = self.output_offset[target] + seen[target], self.path_count(target)
            rows.append(tuple(start + m3 * count for m3 in range(target.dim)))
            seen[target] += 1
        return tuple(rows)

    def split(self, out: Tensor) -> dict[Irrep, Tensor]:
        """Views (N, 2l + 1, paths · C) of the output for each output irrep that has a path."""
        counts = {irrep: self.path_count(irrep) for irrep in self.outputs}
        return split_rows(out, counts)

    @cached_property
    def key(self) -> str:
        """The plan as text, for operators that take only tensors and strings."""
        sides = ["+".join(map(str, side)) for side in (self.inputs, self.outputs)]
        return f"{sides[0]}*{self.l_max}>{sides[1]}"


def split_rows(out: Tensor, counts: dict[Irrep, int]) -> dict[Irrep, Tensor]:
    """Views (N, 2l + 1, count · C) of rows that are ordered by irrep, then component, then count.

    One torch.split, because the gradient of many slices is a sum of as many full tensors.
    """
    present = {irrep: count for irrep, count in counts.items() if count}
    views = torch.split(out, [irrep.dim * count for irrep, count in present.items()], dim=-2)
    return {
        irrep: view.reshape(*out.shape[:-2], irrep.dim, count * out.shape[-1])
        for (irrep, count), view in zip(present.items(), views, strict=True)
    }


@cache
def parse_plan(key: str) -> Plan:
    """The plan whose `key` this is."""
    inputs, rest = key.split("*")
    l_max, outputs = rest.split(">")
    return Plan(read_irreps(inputs), int(l_max), read_irreps(outputs))


def _offsets(sizes: dict[Irrep, int]) -> dict[Irrep, int]:
    offsets, start = {}, 0
    for irrep, size in sizes.items():
        offsets[irrep] = start
        start += size
    return offsets
