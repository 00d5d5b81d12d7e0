"""A potential as a torch.export program: one graph of PyTorch operators, derivatives included.

    bayrace export model.bayrace --to torch-export --structure start.xyz -o model.pt2
    program = torch.export.load("model.pt2").module()      # in Python, without bayrace

What is fixed in it: the atoms, their elements and their order, as `--structure` has them; the
precision; the CPU. Free are positions, cell and the number of pairs. Inputs are

    positions (N, 3) Å · cell (3, 3) Å, rows are lattice vectors · pairs (2, P) int64, each pair of
    neighbours within the cutoff once · shifts (P, 3) whole cells: r = x[j] − x[i] + shift @ cell

and outputs the energy (eV), energies of atoms (N,), forces (N, 3), virial (3, 3) = −∂E/∂strain, and
the σ of the energy over members of the posterior, calibrated; 0 where there is one member. The
derivatives are part of the graph: it runs as it is, without autograd.

For C++ such programs are compiled by AOTInductor. Compare what comes of it with `function` before
you use it: that of torch 2.13 gives right energies and wrong forces (docs/engines.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayrace.data.batch import build_graph
from bayrace.data.frame import Frame
from bayrace.deploy.plain import PlainEnergy, plain_members
from bayrace.potential.potential import Potential, refuse_property

OUTPUTS = ("energy", "energies", "forces", "virial", "energy_uncertainty")
Function = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def export(potential: Potential, frame: Frame, path: str | Path) -> tuple[str, ...]:
    """Write the program for structures of these atoms; the names of its outputs."""
    if Path(path).suffix != ".pt2":
        raise ValueError(f"{path}: a program of torch.export is a .pt2 file; name it so")
    program = exported(potential, frame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        torch.export.save(program, str(path))
    return OUTPUTS


def exported(potential: Potential, frame: Frame) -> Any:
    """The program, in memory."""
    from torch.fx.experimental.proxy_tensor import make_fx

    refuse_property(potential, "a program")
    potential = potential.to(device="cpu")
    inputs = pair_inputs(potential, frame)
    if inputs[2].shape[1] < 2:
        raise ValueError(f"{frame.origin}: fewer than two pairs of neighbours; give another one")
    trace: Any = make_fx(
        function(potential, frame), tracing_mode="symbolic", _allow_non_fake_inputs=True
    )
    pairs = torch.export.Dim("pairs", min=2)
    shapes: Any = ({}, {}, {1: pairs}, {0: pairs})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(trace(*inputs), inputs, dynamic_shapes=shapes)


def function(potential: Potential, frame: Frame) -> Function:
    """What is exported, as a function that autograd runs."""
    species = torch.from_numpy(np.searchsorted(potential.elements, frame.numbers))
    counts = tuple(torch.bincount(species, minlength=len(potential.elements)).tolist())
    order = torch.argsort(species, stable=True)
    rank = torch.argsort(order)
    networks, origins = plain_members(potential, counts)
    references = origins[:, species]  # (M, N)
    calibration = potential.calibration
    fitted = None if calibration is None else calibration.energy
    factor = 1.0 if fitted is None else fitted.one_factor("torch.export")

    def evaluate(
        positions: Tensor, cell: Tensor, pairs: Tensor, shifts: Tensor
    ) -> tuple[Tensor, ...]:
        first, second = pairs[0], pairs[1]
        vectors = (positions[second] - positions[first] + shifts @ cell).detach().requires_grad_()
        members = [_atomic(network, vectors, rank[pairs], species[order]) for network in networks]
        atomic = torch.stack(members)[:, rank] + references  # (M, N)
        (slope,) = torch.autograd.grad(atomic.mean(0).sum(), vectors)
        forces = torch.zeros_like(positions).index_add(0, first, slope)
        forces = forces.index_add(0, second, -slope)
        virial = -(vectors.detach().T @ slope)
        atomic = atomic.detach()
        total = atomic.sum(1)
        spread = (total - total.mean()).square().mean().sqrt() * factor
        return total.mean(), atomic.mean(0), forces, virial, spread

    return evaluate


def pair_inputs(potential: Potential, frame: Frame) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Positions, cell, pairs and shifts of a structure, as the program wants them."""
    graph = build_graph(frame, elements=potential.elements, cutoff=potential.model.cutoff)
    once = torch.arange(len(graph.reverse)) < graph.reverse
    real = potential.dtype
    return (
        graph.positions.to(real),
        graph.cell.to(real),
        graph.edges[:, once].long(),
        graph.shifts[once].to(real),
    )


def _atomic(network: PlainEnergy, vectors: Tensor, ends: Tensor, species: Tensor) -> Tensor:
    energies: Tensor = network(vectors, ends, species)
    return energies.double()
