"""Structures that are too large for the memory, evaluated in parts: the result is the same.

The energy of an atom depends on the atoms that messages reach it from: as many steps along edges as
the network has layers. A part is therefore a block of atoms with all that is so near; energies and
heads are those of the block alone, and the forces that its energy exerts on all its atoms add up
over the parts. What is near is computed more than once, which is the price: about three times the
work for three layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Heads, Outputs, Params
from bayrace.core.protocols import MessagePassing, Model
from bayrace.models.derivatives import evaluate, strained, voigt_stress
from bayrace.nn.tables import inside_transforms

AT_ONCE = 2_000_000
"""Edges of a structure that are evaluated as one: 7 GB with the preset small."""
_BLOCK = 800_000  # edges of the atoms of a part; those around them come on top
_GAIN = 0.7  # largest part of all edges that a part may have, or parts save too little


def evaluate_large(
    model: Model, params: Params, batch: GraphBatch, *, stress: bool, at_once: int | None = None
) -> Outputs:
    """As `bayrace.models.derivatives.evaluate`, without derivatives in the parameters.

    One structure with more than `at_once` edges (AT_ONCE) is evaluated in parts, if the network
    says how far its messages go.
    """
    edges, at_once = batch.reverse.shape[0], at_once or AT_ONCE
    whole = edges <= at_once or batch.n_structures > 1 or inside_transforms()
    if whole or not isinstance(model, MessagePassing):
        return evaluate(model, params, batch, stress=stress)
    most = max(1, batch.n_atoms * min(_BLOCK, at_once // 2) // edges)
    total = _Total(batch, stress=stress)
    for atoms in _blocks(_wrapped(batch), most):
        part, places = _part(batch, atoms, model.hops)
        if part.reverse.shape[0] > _GAIN * edges:
            return evaluate(model, params, batch, stress=stress)
        total.add(model, params, part, places)
    return total.outputs()


class _Total:
    """What parts add up to."""

    def __init__(self, batch: GraphBatch, *, stress: bool) -> None:
        self.batch, self.stress = batch, stress
        self.energy = torch.zeros(1, dtype=torch.float64, device=batch.positions.device)
        self.gradient = torch.zeros_like(batch.positions, dtype=torch.float64)  # (N, 3)
        self.virial = torch.zeros_like(batch.cell, dtype=torch.float64)  # (1, 3, 3)
        self.heads: dict[str, Tensor] = {}

    def add(self, model: Model, params: Params, part: GraphBatch, places: Tensor) -> None:
        """A part whose atoms are at `places`; those of its structure 0 are its own."""
        with torch.enable_grad():
            positions = part.positions.detach().requires_grad_()
            strain = torch.zeros_like(self.batch.cell, requires_grad=True)
            moved = replace(part, positions=positions)
            if self.stress:
                moved = strained(moved, strain.expand(2, 3, 3))
            fixed = {name: value.detach() for name, value in params.items()}
            heads = model.energy(fixed, moved)
            gradient, virial = torch.autograd.grad(
                heads.energy[0], [positions, strain], materialize_grads=True
            )
        self.energy += heads.energy[:1].detach().double()
        self.gradient.index_add_(0, places, gradient.double())
        self.virial += virial.double()
        own = (part.structure_index == 0).nonzero().squeeze(1)
        for name, value in heads._asdict().items():
            if value is not None and name != "energy":
                self._keep(name, value.detach(), own, places)

    def _keep(self, name: str, value: Tensor, own: Tensor, places: Tensor) -> None:
        if name == "stress_head":  # a mean over atoms
            weighted = value[:1] * (len(own) / self.batch.n_atoms)
            self.heads[name] = self.heads.get(name, torch.zeros_like(weighted)) + weighted
            return
        if name not in self.heads:
            self.heads[name] = value.new_empty(self.batch.n_atoms, *value.shape[1:])
        self.heads[name][places[own]] = value[own]

    def outputs(self) -> Outputs:
        """Of the whole structure."""
        dtype = self.batch.positions.dtype
        absent = dict.fromkeys(name for name in Heads._fields if name not in self.heads)
        heads = absent | self.heads | {"energy": self.energy.to(self.heads["atomic_energy"])}
        virial = self.virial.to(dtype)
        return Outputs(
            **heads,  # type: ignore[arg-type]  # those of Heads are all there
            forces=-self.gradient.to(dtype),
            stress=voigt_stress(virial, self.batch) if self.stress else None,
        )


def _wrapped(batch: GraphBatch) -> Tensor:
    """Positions inside the cell, (N, 3), so that blocks are compact."""
    cell = batch.cell[0].double()
    positions = batch.positions.double()
    cells: Tensor = (positions @ torch.linalg.pinv(cell)).floor()
    return positions - cells @ cell


def _blocks(points: Tensor, most: int) -> Iterator[Tensor]:
    """Atoms (n,) of compact blocks of at most so many, by halving the longest direction."""
    waiting = [torch.arange(len(points), device=points.device)]
    while waiting:
        atoms = waiting.pop()
        if len(atoms) <= most:
            yield atoms
            continue
        inside = points[atoms]
        longest = int((inside.amax(0) - inside.amin(0)).argmax())
        order = inside[:, longest].argsort(stable=True)
        half = len(atoms) // 2
        waiting += [atoms[order[:half]], atoms[order[half:]]]


def _part(batch: GraphBatch, block: Tensor, hops: int) -> tuple[GraphBatch, Tensor]:
    """The atoms of a block as structure 0 and those around as structure 1, and where they were.

    Edges are those that end or begin where a message to the block still matters.
    """
    receiver, sender = batch.edges
    owned = torch.zeros(batch.n_atoms, dtype=torch.bool, device=block.device)
    owned[block] = True
    inner = owned.clone()
    for _ in range(hops - 1):
        inner[sender[inner[receiver]]] = True
    used = inner[receiver] | inner[sender]
    edges = used.nonzero().squeeze(1)
    pairs = used[batch.pair_edges[0]].nonzero().squeeze(1)
    there = owned.clone()
    there[receiver[edges]] = True
    atoms = there.nonzero().squeeze(1)
    rank, edge_rank = _places(atoms, batch.n_atoms), _places(edges, len(receiver))
    degree = torch.bincount(rank[receiver[edges]], minlength=len(atoms))
    counts = torch.bincount(batch.species[atoms], minlength=len(batch.species_counts))
    part = GraphBatch(
        species=batch.species[atoms],
        positions=batch.positions[atoms],
        cell=batch.cell.expand(2, 3, 3),
        volume=batch.volume.expand(2),
        edges=rank[batch.edges[:, edges]],
        shifts=batch.shifts[edges],
        structure_index=(~owned[atoms]).long(),
        first_edge=torch.nn.functional.pad(degree.cumsum(0), (1, 0)),
        reverse=edge_rank[batch.reverse[edges]],
        pair=_places(pairs, batch.pair_edges.shape[1])[batch.pair[edges]],
        pair_edges=edge_rank[batch.pair_edges[:, pairs]],
        file_order=torch.arange(len(atoms), device=atoms.device),
        species_counts=tuple(counts.tolist()),
    )
    return part, atoms


def _places(chosen: Tensor, count: int) -> Tensor:
    """Place of each of `count` things among the chosen; meaningless for those left out."""
    places = torch.zeros(count, dtype=torch.int64, device=chosen.device)
    places[chosen] = torch.arange(len(chosen), device=chosen.device)
    return places
