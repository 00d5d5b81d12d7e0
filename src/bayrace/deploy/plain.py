"""The network in its plain PyTorch form, as a function of the vectors between neighbours.

For engines that differentiate vectors themselves, and for tracing: every number that decides what
is computed is the size of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.protocols import ClosedForm
from bayrace.deploy.members import members_of
from bayrace.models.race.network import Race
from bayrace.models.race.spec import RaceSpec
from bayrace.posterior.point import Point
from bayrace.potential.opened import altered
from bayrace.potential.potential import Potential


class PlainEnergy(torch.nn.Module):
    """Energies of atoms (N,) as a function of vectors between neighbours, without references.

    Inputs are vectors (P, 3) of pairs, each once, their ends (2, P), and species (N,), ascending.
    With `counts`, the atoms of each element, it is a network for this composition alone.
    """

    def __init__(
        self,
        spec: RaceSpec,
        weights: dict[str, Tensor],
        counts: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self._counts = counts
        self._race = Race(spec, kernel="plain")
        self._names = list(weights)
        for place, value in enumerate(weights.values()):
            self.register_buffer(f"weight{place}", value.detach().clone())

    def forward(self, vectors: Tensor, ends: Tensor, species: Tensor) -> Tensor:
        """Trace-able: sizes come from shapes, and no number decides what is computed."""
        params = {name: getattr(self, f"weight{k}") for k, name in enumerate(self._names)}
        real = params["embedding"].dtype
        pairs = torch.arange(vectors.shape[0])
        kinds = len(self._race.elements)
        # the sizes of tensors stay sizes in a trace, where numbers would become constants
        counts = self._counts or tuple(
            (species == kind).nonzero().shape[0] for kind in range(kinds)
        )
        none = torch.zeros_like(pairs)
        batch = GraphBatch(
            species=species,
            positions=torch.zeros(species.shape[0], 3, dtype=real),
            cell=torch.eye(3, dtype=real).unsqueeze(0),
            volume=torch.ones(1, dtype=real),
            edges=torch.cat([ends, ends.flip(0)], dim=1),
            shifts=torch.cat([vectors, -vectors]).to(real),  # in a cell of 1 Å they are vectors
            structure_index=torch.zeros_like(species),
            first_edge=none,  # what follows is for fused kernels
            reverse=none,
            pair=torch.cat([pairs, pairs]),
            pair_edges=torch.stack([pairs, pairs + vectors.shape[0]]),
            file_order=none,
            species_counts=counts,
        )
        return self._race.energy(params, batch).atomic_energy


def plain_members(
    potential: Potential, counts: tuple[int, ...] | None = None
) -> tuple[list[PlainEnergy], Tensor]:
    """The networks of a posterior's members, and the energies of their free atoms, (M, Z) eV."""
    spec = potential.spec
    if not isinstance(spec, RaceSpec):
        raise ValueError(f"model {spec.name}: only race networks have a plain form to export")
    members = single_members(potential)
    weights = [{name: value[0] for name, value in each.folded.items()} for each in members]
    networks = [PlainEnergy(spec, each, counts) for each in weights]
    return networks, torch.stack([each.origins.reshape(-1) for each in members])


def example(spec: RaceSpec, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors, ends and species to trace a network with.

    It has every element and pairs that are too close, so that everything the network may compute
    is in the trace.
    """
    kinds = len(spec.elements)
    species = torch.arange(kinds).repeat_interleave(3)
    atoms = len(species)
    first, second = torch.triu_indices(atoms, atoms, offset=1).unbind(0)
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(atoms, 3, generator=generator, dtype=torch.float64)
    vectors = (places[second] - places[first]).to(dtype)
    return vectors, torch.stack([first, second]), species


def single_members(potential: Potential) -> Sequence[Potential]:
    """Potentials of single weight samples; a closed form has its mean alone."""
    posterior = potential.posterior
    if posterior.name == "point":
        return [potential]
    if isinstance(posterior, ClosedForm):
        weights = {name: value[0] for name, value in potential.members.items()}
        return [altered(potential, posterior=Point(weights))]
    return members_of(potential)
