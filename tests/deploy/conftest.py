"""A small potential that holds a metal together: Race fitted for seconds to EMT Cu-Al."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Params
from bayrace.data.batch import batch_order, build_graph, collate
from bayrace.data.frame import frame_from_atoms
from bayrace.models.derivatives import evaluate
from bayrace.posterior.ensemble import Ensemble
from bayrace.potential.potential import Potential

STEPS = 80


@pytest.fixture(scope="session")
def alloy() -> Atoms:
    """Four atoms of Cu-Al, fcc, cell shorter than the cutoff."""
    atoms = bulk("Al", a=3.9, cubic=True)
    atoms.symbols[[1, 2]] = "Cu"
    return atoms


@pytest.fixture(scope="session")
def potential(make_potential: Callable[..., Potential], alloy: Atoms) -> Potential:
    """A member fitted to strained and rattled cells, float64, and a slightly different one."""
    start = make_potential(elements=(13, 29), cutoff=4.0)
    first = fit(start, *training_batch(start, alloy))
    generator = torch.Generator().manual_seed(1)
    members = {
        name: torch.stack([v, v + 1e-3 * torch.randn(v.shape, generator=generator, dtype=v.dtype)])
        for name, v in first.items()
    }
    return replace(start, posterior=Ensemble(members), references={13: -1.0, 29: -2.0})


def training_batch(
    potential: Potential, alloy: Atoms
) -> tuple[GraphBatch, torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(0)
    graphs, energies, forces = [], [], []
    for _ in range(10):
        atoms = alloy.copy()
        strain = np.eye(3) * generator.uniform(0.93, 1.1) + generator.normal(0, 0.02, (3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        atoms.positions += generator.normal(0, 0.15, atoms.positions.shape)
        frame = frame_from_atoms(atoms, keys=None)
        graphs.append(build_graph(frame, elements=potential.elements, cutoff=4.0))
        atoms.calc = EMT()
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces())
    batch = collate(graphs, elements_count=2, dtype=torch.float64, device="cpu")
    labels = torch.from_numpy(np.concatenate(forces))[batch_order(batch)]
    return batch, torch.tensor(energies, dtype=torch.float64), labels


def fit(
    potential: Potential, batch: GraphBatch, energy: torch.Tensor, forces: torch.Tensor
) -> Params:
    weights = {name: value[0].clone().requires_grad_() for name, value in potential.members.items()}
    optimiser = torch.optim.Adam(weights.values(), lr=0.05)
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = 0.05 * (1 - step / STEPS)
        outputs = evaluate(potential.model, weights, batch)
        loss = (outputs.energy - energy).square().mean()
        loss = loss + 3 * (outputs.forces - forces).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: value.detach() for name, value in weights.items()}
