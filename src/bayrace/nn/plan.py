"""The plan of an edge convolution: its paths and where their numbers lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

from torch import Tensor

from bayrace.nn.irreps import Irrep

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
        views = {}
        for irrep in self.outputs:
            count, start = self.path_count(irrep), self.output_offset[irrep]
            if count:
                rows = out[..., start : start + irrep.dim * count, :]
                views[irrep] = rows.reshape(*out.shape[:-2], irrep.dim, count * out.shape[-1])
        return views

    @cached_property
    def key(self) -> str:
        """The plan as text, for operators that take only tensors and strings."""
        sides = ["+".join(map(str, side)) for side in (self.inputs, self.outputs)]
        return f"{sides[0]}*{self.l_max}>{sides[1]}"


@cache
def parse_plan(key: str) -> Plan:
    """The plan whose `key` this is."""
    inputs, rest = key.split("*")
    l_max, outputs = rest.split(">")
    return Plan(_parse_side(inputs), int(l_max), _parse_side(outputs))


def _parse_side(text: str) -> tuple[Irrep, ...]:
    return tuple(Irrep(int(term[:-1]), 1 if term[-1] == "e" else -1) for term in text.split("+"))


def _offsets(sizes: dict[Irrep, int]) -> dict[Irrep, int]:
    offsets, start = {}, 0
    for irrep, size in sizes.items():
        offsets[irrep] = start
        start += size
    return offsets
