"""Arrays that a compiled network is given: results of members, graphs, and matrices made before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.nn.program.engine import Integers
from bayrace.nn.program.tape import Value


@dataclass(frozen=True, eq=False)
class Prepared:
    """Weights as a program takes them, with matrices made of them beforehand."""

    key: tuple[int, ...] | None
    given: tuple[Tensor, ...]  # held, so that no other ones get their addresses
    arrays: dict[Value, Tensor]
    table: Integers  # a program's, with their addresses


def identity(weights: Iterable[Tensor], members: int) -> tuple[int, ...] | None:
    """What changes with the numbers of weights that are held; None where that cannot be told.

    Some of several members begin where all of them do.
    """
    key = [members]
    try:
        for each in weights:
            if not each.is_contiguous():
                return None
            key += (each.data_ptr(), each._version)
    except RuntimeError:  # made in inference mode
        return None
    return tuple(key)


def empty_results(values: tuple[Value, ...], batch: GraphBatch, members: int) -> list[Tensor]:
    """Arrays for the results: those of members one after another, but for the repulsion."""
    numbers, hidden, _, _, _ = values
    like, atoms = batch.positions, members * batch.n_atoms
    return [
        like.new_empty((atoms, numbers.width)),
        like.new_empty((atoms, hidden.width)),
        like.new_empty(batch.n_atoms),
        like.new_empty((atoms, 3)),
        like.new_empty((members * batch.n_structures, 3, 3)),
    ]


def first_copy(batch: GraphBatch, members: int) -> GraphBatch:
    """The batch that was repeated."""
    atoms, structures = batch.n_atoms // members, batch.n_structures // members
    first_edge = batch.first_edge[: atoms + 1]
    edges = int(first_edge[-1])
    return GraphBatch(
        species=batch.species[:atoms],
        positions=batch.positions[:atoms],
        cell=batch.cell[:structures],
        volume=batch.volume[:structures],
        edges=batch.edges[:, :edges],
        shifts=batch.shifts[:edges],
        structure_index=batch.structure_index[:atoms],
        first_edge=first_edge,
        reverse=batch.reverse[:edges],
        pair=batch.pair[:edges],
        pair_edges=batch.pair_edges[:, : edges // 2],
        file_order=batch.file_order[:atoms],
        species_counts=batch.species_counts[: len(batch.species_counts) // members],
    )
