"""Export to metatomic: a TorchScript file that LAMMPS, i-PI, ASE and others load through it.

The network is traced in its plain PyTorch form, once for every member, as a function of the vectors
between neighbours, so that the engine differentiates positions and cell itself. Outputs are
`energy`, of systems or atoms, and where there are several members `energy_uncertainty` (their
spread, calibrated) and `energy_ensemble`. A closed form (LLPR and the like) is exported as its
mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayrace
from bayrace.core.graph import GraphBatch
from bayrace.core.protocols import ClosedForm
from bayrace.deploy.members import members_of
from bayrace.models.race.network import Race
from bayrace.models.race.spec import RaceSpec
from bayrace.posterior.point import Point
from bayrace.potential.potential import Potential


def export(potential: Potential, path: str | Path) -> tuple[str, ...]:
    """Write a file for metatomic; the names of its outputs."""
    try:
        from metatomic.torch import (
            AtomisticModel,
            ModelCapabilities,
            ModelMetadata,
            ModelOutput,
        )

        from bayrace.deploy.metatomic_module import MetatomicModule
    except ImportError as error:
        raise ValueError("metatomic is not installed; pip install 'bayrace[engines]'") from error
    spec = potential.spec
    if not isinstance(spec, RaceSpec):
        raise ValueError(f"model {spec.name}: only race networks are exported to metatomic")
    members = _single_members(potential.to(device="cpu"))
    calibration = potential.calibration
    energy = None if calibration is None else calibration.energy
    module = MetatomicModule(
        [_traced(member, spec) for member in members],
        _species(spec.elements),
        torch.stack([member.origins.reshape(-1) for member in members]),
        spec.cutoff,
        1.0 if energy is None else energy.factor,
    )
    names = ("energy", "energy_uncertainty", "energy_ensemble")[: 1 if len(members) == 1 else 3]
    about = "Machine-learned energy; its spread is over the members of the posterior."
    capabilities = ModelCapabilities(
        outputs={
            name: ModelOutput(unit="eV", sample_kind="atom", description=about) for name in names
        },
        atomic_types=list(spec.elements),
        interaction_range=spec.cutoff * spec.layers,
        length_unit="Angstrom",
        supported_devices=["cpu"],
        dtype=str(potential.dtype).removeprefix("torch."),
    )
    about_us = ModelMetadata(
        name="bayrace", description=f"A potential of bayrace {bayrace.__version__}; {about}"
    )
    AtomisticModel(module.eval(), about_us, capabilities).save(str(path))
    return names


class PlainEnergy(torch.nn.Module):
    """Energies of atoms (N,) as a function of vectors between neighbours, without references.

    Inputs are vectors (P, 3) of pairs, each once, their ends (2, P), and species (N,), ascending.
    """

    def __init__(self, spec: RaceSpec, weights: dict[str, Tensor]) -> None:
        super().__init__()
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
        counts = tuple((species == kind).nonzero().shape[0] for kind in range(kinds))
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


def _traced(member: Potential, spec: RaceSpec) -> torch.nn.Module:
    """The plain network of one member as TorchScript.

    The example has every element and two pairs that are too close, so that everything the network
    may compute is in the trace.
    """
    weights = {name: value[0] for name, value in member.folded.items()}
    kinds = len(spec.elements)
    species = torch.arange(kinds).repeat_interleave(3)
    atoms = len(species)
    first, second = torch.triu_indices(atoms, atoms, offset=1).unbind(0)
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(atoms, 3, generator=generator, dtype=torch.float64)
    vectors = (places[second] - places[first]).to(member.dtype)
    example = (vectors, torch.stack([first, second]), species)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of sizes and of the pairs that are too close
        trace: Any = torch.jit.trace  # torch has no types for it
        traced: torch.nn.Module = trace(PlainEnergy(spec, weights), example, check_trace=False)
    return traced


def _single_members(potential: Potential) -> Sequence[Potential]:
    posterior = potential.posterior
    if posterior.name == "point":
        return [potential]
    if isinstance(posterior, ClosedForm):
        weights = {name: value[0] for name, value in potential.members.items()}
        return [replace(potential, posterior=Point(weights))]
    return members_of(potential)


def _species(elements: tuple[int, ...]) -> Tensor:
    table = torch.full((120,), -1)
    table[list(elements)] = torch.arange(len(elements))
    return table
