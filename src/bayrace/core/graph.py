"""Several structures as one graph.

Sizes: S structures, N atoms, E directed edges, P undirected pairs (E = 2P), Z elements.
Units: eV, Å, eV/Å, eV/Å³. Stress uses ASE's Voigt order (xx, yy, zz, yz, xz, xy) and sign.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class GraphBatch:
    """Several structures as one graph.

    Two invariants make the kernels fast, and `bayrace.data.batch.collate` establishes both:
    atoms are sorted by species, and edges are sorted by receiver. `file_order` undoes the first.
    """

    species: Tensor  # (N,) int64, index into the model's elements, ascending
    positions: Tensor  # (N, 3) Å
    cell: Tensor  # (S, 3, 3) Å, rows are lattice vectors; zero rows where not periodic
    volume: Tensor  # (S,) Å³; nan where the structure is not periodic in all three directions
    edges: Tensor  # (2, E) int64, receiver i and sender j; sorted by receiver
    shifts: Tensor  # (E, 3) whole cells: r_ij = x_j - x_i + shift @ cell
    structure_index: Tensor  # (N,) int64, structure of each atom
    first_edge: Tensor  # (N + 1,) int64, edges of receiver n are first_edge[n] : first_edge[n + 1]
    reverse: Tensor  # (E,) int64, index of the edge j -> i with the opposite shift
    pair: Tensor  # (E,) int64, undirected pair of each edge, in 0..P-1
    pair_edges: Tensor  # (2, P) int64, the two edges of each pair
    file_order: Tensor  # (N,) int64, value_of_batch[file_order] is in the order of the input files
    species_counts: tuple[int, ...]  # atoms of each element in the batch, length Z

    @property
    def n_structures(self) -> int:
        """Their number, S."""
        return self.cell.shape[0]

    @property
    def n_atoms(self) -> int:
        """Their number over all structures, N."""
        return self.species.shape[0]

    def atom_counts(self) -> Tensor:
        """Atoms of each structure, (S,) int64."""
        if self.n_structures == 1:
            return self.structure_index.new_full((1,), self.n_atoms)
        return torch.bincount(self.structure_index, minlength=self.n_structures)

    def summed(self, values: Tensor) -> Tensor:
        """Values of atoms (N, ...) added up over each structure, (S, ...)."""
        if self.n_structures == 1:
            return values.sum(0, keepdim=True)
        zero = values.new_zeros(self.n_structures, *values.shape[1:])
        return zero.index_add(0, self.structure_index, values)

    def averaged(self, values: Tensor) -> Tensor:
        """Values of atoms (N, ...) averaged over each structure, (S, ...)."""
        if self.n_structures == 1:
            return values.mean(0, keepdim=True)
        counts = self.atom_counts().to(values)
        return self.summed(values) / counts.reshape(-1, *[1] * (values.ndim - 1))

    def moved(self, positions: Tensor, cell: Tensor, volume: Tensor) -> GraphBatch:
        """The same graph elsewhere; much quicker than `replace`, which counts in dynamics."""
        result = object.__new__(GraphBatch)
        vars(result).update(vars(self), positions=positions, cell=cell, volume=volume)
        return result

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> GraphBatch:
        """Move to a device; `dtype` applies to positions, cell, volume and shifts."""
        real = {name: getattr(self, name).to(device=device, dtype=dtype) for name in _REAL}
        whole = {name: getattr(self, name).to(device=device) for name in _WHOLE}
        return replace(self, **real, **whole)


_REAL = ("positions", "cell", "volume", "shifts")
_WHOLE = (
    "species",
    "edges",
    "structure_index",
    "first_edge",
    "reverse",
    "pair",
    "pair_edges",
    "file_order",
)
