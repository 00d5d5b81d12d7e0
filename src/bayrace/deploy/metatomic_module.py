"""What metatomic runs: TorchScript, so it is written in the part of Python that TorchScript knows.

Imports metatomic, so that only `bayrace.deploy.metatomic` imports this file, and when it is asked.
Annotations are not postponed here: TorchScript reads them.
"""

from typing import Dict, List, Optional, Tuple  # noqa: UP035 - TorchScript

import torch
from metatensor.torch import Labels, TensorBlock, TensorMap
from metatomic.torch import ModelOutput, NeighborListOptions, System


class MetatomicModule(torch.nn.Module):
    """Energies of systems by traced members; see `bayrace.deploy.metatomic`."""

    species: torch.Tensor
    origins: torch.Tensor

    def __init__(
        self,
        members: List[torch.nn.Module],  # noqa: UP006
        species: torch.Tensor,  # of atomic numbers, (120,); -1 where unknown
        origins: torch.Tensor,  # (M, Z) eV, float64
        cutoff: float,
        factor: float,
    ) -> None:
        super().__init__()
        self.members = torch.nn.ModuleList(members)
        self.register_buffer("species", species)
        self.register_buffer("origins", origins)
        self.factor = factor
        self.neighbours = NeighborListOptions(cutoff=cutoff, full_list=False, strict=True)

    def requested_neighbor_lists(self) -> List[NeighborListOptions]:  # noqa: UP006
        """Each pair once, closer than the cutoff."""
        return [self.neighbours]

    def forward(
        self,
        systems: List[System],  # noqa: UP006
        outputs: Dict[str, ModelOutput],  # noqa: UP006
        selected_atoms: Optional[Labels] = None,  # noqa: UP045
    ) -> Dict[str, TensorMap]:  # noqa: UP006
        """Energy, its spread over members, and the members' own, of systems or atoms."""
        atomic, samples = self.atomic(systems)  # (M, N) eV, and (N, 2): system, atom
        chosen = torch.ones(samples.shape[0], dtype=torch.bool, device=samples.device)
        if selected_atoms is not None:
            wanted = selected_atoms.values.to(samples.device)
            largest = int(samples.max()) + 1
            keys = samples[:, 0] * largest + samples[:, 1]
            chosen = torch.isin(keys, (wanted[:, 0] * largest + wanted[:, 1]).to(keys.dtype))
        zero = torch.zeros(atomic.shape[0], len(systems), dtype=atomic.dtype, device=atomic.device)
        total = zero.index_add(1, samples[:, 0], atomic * chosen.to(atomic.dtype))
        result: Dict[str, TensorMap] = {}  # noqa: UP006
        for name, output in outputs.items():
            by_atom = output.sample_kind == "atom"
            values = atomic[:, chosen] if by_atom else total  # (M, rows)
            if by_atom:
                labels = Labels(["system", "atom"], samples[chosen])
            else:
                labels = Labels(
                    ["system"], torch.arange(len(systems), device=samples.device).reshape(-1, 1)
                )
            if name == "energy":
                block = values.mean(0, keepdim=True)
            elif name == "energy_uncertainty":
                block = values.detach().std(0, unbiased=False, keepdim=True) * self.factor
            else:
                block = values
            result[name] = self.mapped(block.T, labels, systems[0].positions.dtype)
        return result

    def atomic(self, systems: List[System]) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        """Energies of atoms, (M, N), by each member, and where each atom is, (N, 2)."""
        vectors: List[torch.Tensor] = []  # noqa: UP006
        pairs: List[torch.Tensor] = []  # noqa: UP006
        species: List[torch.Tensor] = []  # noqa: UP006
        samples: List[torch.Tensor] = []  # noqa: UP006
        before = 0
        for number, system in enumerate(systems):
            found = system.get_neighbor_list(self.neighbours)
            count = system.types.shape[0]
            vectors.append(found.values.reshape(-1, 3))
            pairs.append(found.samples.values[:, :2].to(torch.int64).T + before)
            species.append(self.species[system.types.to(torch.int64)])
            places = torch.arange(count, device=system.types.device)
            samples.append(torch.stack([torch.full_like(places, number), places], dim=1))
            before += count
        kinds = torch.cat(species)
        order = torch.argsort(kinds, stable=True)  # the network wants atoms of an element together
        rank = torch.empty_like(order)
        rank[order] = torch.arange(order.shape[0], device=order.device)
        ends = rank[torch.cat(pairs, dim=1)]
        vector = torch.cat(vectors)
        energies: List[torch.Tensor] = []  # noqa: UP006
        for number, member in enumerate(self.members):
            energy = member(vector, ends, kinds[order]).to(torch.float64)
            energies.append(energy[rank] + self.origins[number][kinds])
        return torch.stack(energies), torch.cat(samples)

    def mapped(self, values: torch.Tensor, labels: Labels, dtype: torch.dtype) -> TensorMap:
        """One block of these values, (rows, columns)."""
        columns = torch.arange(values.shape[1], device=values.device).reshape(-1, 1)
        none: List[Labels] = []  # noqa: UP006
        block = TensorBlock(
            values=values.contiguous().to(dtype),
            samples=labels,
            components=none,
            properties=Labels(["energy"], columns),
        )
        key = Labels(["_"], torch.zeros(1, 1, dtype=torch.int64, device=values.device))
        return TensorMap(key, [block])
