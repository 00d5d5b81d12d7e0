"""Graphs of single structures, and their union into the batches that models take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from ase.data import chemical_symbols
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.data.frame import DataError, Frame, Integers, symbols_of
from bayrace.data.neighbours import neighbour_list, reverse_edges


@dataclass(frozen=True, eq=False)
class Graph:
    """One structure of n atoms and e directed edges, atoms in file order, on the CPU."""

    species: Tensor  # (n,) int64, index into the elements
    positions: Tensor  # (n, 3) float64, Å
    cell: Tensor  # (3, 3) float64, Å; zero rows where not periodic
    volume: Tensor  # () float64, Å³; nan unless periodic in all three directions
    edges: Tensor  # (2, e) int32, receiver and sender, sorted by receiver
    shifts: Tensor  # (e, 3) int32
    reverse: Tensor  # (e,) int32, index of the edge j -> i with the opposite shift


def build_graph(frame: Frame, *, elements: tuple[int, ...], cutoff: float) -> Graph:
    """Find the neighbours of a frame; an element outside `elements` is refused."""
    species = species_of(frame, elements)
    edges, shifts = neighbour_list(frame.positions, frame.cell, frame.pbc, cutoff)
    periodic = bool(frame.pbc.all())
    volume = abs(np.linalg.det(frame.cell)) if periodic else np.nan
    return Graph(
        species=torch.from_numpy(species),
        positions=torch.from_numpy(frame.positions),
        cell=torch.from_numpy(np.where(frame.pbc[:, None], frame.cell, 0.0)),
        volume=torch.tensor(volume, dtype=torch.float64),
        edges=torch.from_numpy(edges.astype(np.int32)),
        shifts=torch.from_numpy(shifts.astype(np.int32)),
        reverse=torch.from_numpy(reverse_edges(edges, shifts).astype(np.int32)),
    )


def species_of(frame: Frame, elements: tuple[int, ...]) -> Integers:
    """The place of each atom's element among `elements`, (n,); others are refused."""
    species = np.searchsorted(elements, frame.numbers)
    known = np.take(elements, species, mode="clip") == frame.numbers
    if not known.all():
        atom = int(np.argmin(known))
        raise DataError(
            f"{frame.origin}: atom {atom} is {chemical_symbols[frame.numbers[atom]]}, which the "
            f"training data did not have; known elements: {symbols_of(elements)}; "
            f"remove the frame or train with data of this element"
        )
    return species.astype(np.int64)


def collate(
    graphs: Sequence[Graph],
    *,
    elements_count: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> GraphBatch:
    """Join graphs into one batch with atoms sorted by species and edges by receiver.

    Atoms of one species keep their order, but in large structures they follow a curve through
    space, so that neighbours are near each other in memory too.
    """
    if not graphs:
        raise DataError("a batch of 0 structures; give at least one")
    atom_counts = torch.tensor([graph.species.shape[0] for graph in graphs])
    edge_counts = torch.tensor([graph.reverse.shape[0] for graph in graphs])
    species = torch.cat([graph.species for graph in graphs])
    order = _order(graphs, species)
    rank = _inverse(order)  # place in the batch of each atom in file order
    edges, edge_order, first_edge = _sorted_edges(graphs, atom_counts, edge_counts, order, rank)
    reverse = _reverse(graphs, edge_counts, edge_order)
    pair, pair_edges = _pairs(reverse)
    batch = GraphBatch(
        species=species[order],
        positions=torch.cat([graph.positions for graph in graphs])[order].to(dtype),
        cell=torch.stack([graph.cell for graph in graphs]).to(dtype),
        volume=torch.stack([graph.volume for graph in graphs]).to(dtype),
        edges=edges,
        shifts=torch.cat([graph.shifts for graph in graphs])[edge_order].to(dtype),
        structure_index=torch.repeat_interleave(atom_counts)[order],
        first_edge=first_edge,
        reverse=reverse,
        pair=pair,
        pair_edges=pair_edges,
        file_order=rank,
        species_counts=tuple(torch.bincount(species, minlength=elements_count).tolist()),
    )
    return batch if torch.device(device).type == "cpu" else batch.to(device=device)


def repeated(batch: GraphBatch, times: int, *, edges: bool = True) -> GraphBatch:
    """The batch `times` over, side by side, for members with weights of their own.

    Each copy has species of its own: species z of copy m is m · Z + z. Without `edges` all that
    belongs to them is left as it is: compiled networks read the first copy alone.
    """
    count = batch.reverse.shape[0]
    sizes = {
        "species": len(batch.species_counts),
        "structure_index": batch.n_structures,
        "file_order": batch.n_atoms,
    }
    if edges:
        sizes |= {
            "edges": batch.n_atoms,
            "reverse": count,
            "pair": batch.pair_edges.shape[1],
            "pair_edges": count,
        }
    copies = torch.arange(times, device=batch.species.device)

    def shifted(value: Tensor, size: int) -> Tensor:
        """Copies of an index (..., n), the m-th moved by m · size: (..., times · n)."""
        return (value.unsqueeze(-2) + (copies * size).unsqueeze(-1)).flatten(-2)

    whole = {name: shifted(getattr(batch, name), size) for name, size in sizes.items()}
    if edges:
        last = torch.full((1,), times * count, device=batch.first_edge.device)
        whole["first_edge"] = torch.cat([shifted(batch.first_edge[:-1], count), last])
    return replace(
        batch,
        positions=batch.positions.repeat(times, 1),
        cell=batch.cell.repeat(times, 1, 1),
        volume=batch.volume.repeat(times),
        shifts=batch.shifts.repeat(times, 1) if edges else batch.shifts,
        species_counts=batch.species_counts * times,
        **whole,
    )


def batch_order(batch: GraphBatch) -> Tensor:
    """Return (N,): values_in_file_order[batch_order(batch)] is in the batch's atom order."""
    return _inverse(batch.file_order)


def separate(batch: GraphBatch) -> Iterator[tuple[GraphBatch, Tensor]]:
    """Each structure of a batch as a batch of its own, with the places (n,) of its atoms."""
    structure_of_edge = batch.structure_index[batch.edges[0]]
    degree = batch.first_edge.diff()
    for structure in range(batch.n_structures):
        atoms = (batch.structure_index == structure).nonzero().squeeze(1)
        edges = (structure_of_edge == structure).nonzero().squeeze(1)
        pairs = (structure_of_edge[batch.pair_edges[0]] == structure).nonzero().squeeze(1)
        rank = _places(atoms, batch.n_atoms)
        edge_rank = _places(edges, len(structure_of_edge))
        counts = torch.bincount(batch.species[atoms], minlength=len(batch.species_counts))
        yield (
            GraphBatch(
                species=batch.species[atoms],
                positions=batch.positions[atoms],
                cell=batch.cell[structure : structure + 1],
                volume=batch.volume[structure : structure + 1],
                edges=rank[batch.edges[:, edges]],
                shifts=batch.shifts[edges],
                structure_index=torch.zeros_like(atoms),
                first_edge=torch.nn.functional.pad(degree[atoms].cumsum(0), (1, 0)),
                reverse=edge_rank[batch.reverse[edges]],
                pair=_places(pairs, batch.pair_edges.shape[1])[batch.pair[edges]],
                pair_edges=edge_rank[batch.pair_edges[:, pairs]],
                file_order=rank[
                    batch.file_order[batch.structure_index[batch.file_order] == structure]
                ],
                species_counts=tuple(counts.tolist()),
            ),
            atoms,
        )


_LARGE = 2000  # atoms: more than that do not fit into caches in any order
_BOX = 4.0  # Å, atoms in such a box keep their order


def _order(graphs: Sequence[Graph], species: Tensor) -> Tensor:
    """Atoms by species, and within one as they are or, in large structures, along a curve."""
    if all(graph.species.shape[0] <= _LARGE for graph in graphs):
        return torch.argsort(species, stable=True)
    places = [
        _curve(graph.positions) + (index << 30)
        if graph.species.shape[0] > _LARGE
        else torch.full_like(graph.species, index << 30)
        for index, graph in enumerate(graphs)
    ]
    along = torch.argsort(torch.cat(places), stable=True)
    return along[torch.argsort(species[along], stable=True)]


def _curve(positions: Tensor) -> Tensor:
    """Place of each atom on Morton's curve (1966): the bits of its three box numbers in turns."""
    box = ((positions - positions.amin(0)) / _BOX).long().clamp(max=1023)
    place = torch.zeros(len(positions), dtype=torch.int64)
    for bit in range(10):
        for axis in range(3):
            place |= ((box[:, axis] >> bit) & 1) << (3 * bit + axis)
    return place


def _sorted_edges(
    graphs: Sequence[Graph], atom_counts: Tensor, edge_counts: Tensor, order: Tensor, rank: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Edges (2, E) in batch numbering, the order (E,) they were taken in, and first_edge (N+1,).

    The edges of each receiver are contiguous in the graphs already, so that sorting them by the
    new place of the receiver only moves whole blocks.
    """
    offsets = torch.repeat_interleave(atom_counts.cumsum(0) - atom_counts, edge_counts)
    joined = torch.cat([graph.edges for graph in graphs], dim=1) + offsets
    degree = torch.bincount(joined[0], minlength=order.shape[0])
    old_start = degree.cumsum(0) - degree
    degree = degree[order]
    first_edge = torch.zeros(order.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(degree, 0, out=first_edge[1:])
    moves = torch.repeat_interleave(old_start[order] - first_edge[:-1], degree)
    edge_order = moves + torch.arange(joined.shape[1])
    return rank[joined[:, edge_order]], edge_order, first_edge


def _reverse(graphs: Sequence[Graph], edge_counts: Tensor, edge_order: Tensor) -> Tensor:
    offsets = torch.repeat_interleave(edge_counts.cumsum(0) - edge_counts, edge_counts)
    joined = torch.cat([graph.reverse for graph in graphs]) + offsets
    return _inverse(edge_order)[joined[edge_order]]


def _pairs(reverse: Tensor) -> tuple[Tensor, Tensor]:
    """Number pairs by their first edge: pair (E,) and pair_edges (2, P), row 0 ascending."""
    leads = torch.arange(reverse.shape[0]) < reverse
    leaders = leads.nonzero().squeeze(1)
    number = leads.cumsum(0) - 1
    pair = torch.where(leads, number, number[reverse])
    return pair, torch.stack([leaders, reverse[leaders]])


def _places(chosen: Tensor, count: int) -> Tensor:
    """Place of each of `count` things among the chosen; meaningless for those left out."""
    places = torch.zeros(count, dtype=torch.int64, device=chosen.device)
    places[chosen] = torch.arange(len(chosen), device=chosen.device)
    return places


def _inverse(order: Tensor) -> Tensor:
    places = torch.empty_like(order)
    places[order] = torch.arange(order.shape[0], device=order.device)
    return places
