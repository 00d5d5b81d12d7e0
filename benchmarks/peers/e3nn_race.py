"""RACE as published, with e3nn: tensor products per edge and the full outer product with a¹.

.venv/bin/python benchmarks/peers/e3nn_race.py     proves that it is our Race, in float64

The reference of the speed benchmark. Layers, irreps, channels, radial networks and readouts are
those of docs/theory.md; heads are the paper's eight invariants. `pruned=True` leaves out what
bayrace leaves out, irreps that no readout uses; the outer product is written out in both.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path
from typing import Any, ClassVar

import torch
from ase import Atoms
from bayrace_peer import SIZES, specification
from common import Predicted, Statistics, read, statistics
from e3nn import o3
from home import BENCH
from systems import CUTOFF
from torch import Tensor, nn

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Params
from bayrace.data.batch import batch_order, build_graph, collate
from bayrace.data.frame import frame_from_atoms
from bayrace.models.derivatives import evaluate
from bayrace.models.race.layout import race_layout
from bayrace.models.race.network import Race
from bayrace.models.race.spec import RaceSpec
from bayrace.nn.irreps import parse_irreps
from bayrace.nn.linear import linear
from bayrace.nn.radial import bessel_basis, silu

HEADS = 8  # energy, its log-variance, and six numbers of the Cholesky factor
SCALAR = o3.Irrep("0e")


class Layer(nn.Module):
    """Up, convolution, down, outer product with a¹, linear, and the species-indexed skip."""

    def __init__(self, spec: RaceSpec, inputs: o3.Irreps, outputs: o3.Irreps) -> None:
        super().__init__()
        harmonics = o3.Irreps.spherical_harmonics(spec.l_max)
        middle, paths = _paths(inputs, harmonics, outputs)
        self.up = o3.Linear(inputs, inputs)
        self.convolution = o3.TensorProduct(
            inputs, harmonics, middle, paths, internal_weights=False, shared_weights=False
        )
        sizes = (spec.radial_basis, *spec.radial_hidden, self.convolution.weight_numel)
        self.radial = nn.ParameterList(torch.randn(a, b) for a, b in itertools.pairwise(sizes))
        self.down = o3.Linear(middle.simplify(), outputs)
        one_body = o3.Irreps([(spec.features, SCALAR)])
        outer = o3.Irreps([(count * spec.features, irrep) for count, irrep in outputs])
        pairs = [(i, 0, i, "uvuv", False) for i in range(len(outputs))]
        self.outer = o3.TensorProduct(outputs, one_body, outer, pairs)
        self.product = o3.Linear(outer, outputs)
        species = o3.Irreps([(len(spec.elements), SCALAR)])
        self.skip = o3.FullyConnectedTensorProduct(inputs, species, outputs)
        self.hidden = o3.Linear(outputs, o3.Irreps([(spec.readout_hidden, SCALAR)]))
        self.heads = nn.Parameter(torch.randn(spec.readout_hidden, HEADS))
        neighbours = spec.mean_neighbours
        self.norm = math.sqrt(neighbours) if spec.neighbour_norm == "sqrt" else neighbours

    def forward(
        self, x: Tensor, one_body: Tensor, species: Tensor, edges: Tensor, y: Tensor, basis: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A^(t) and the heads of its readout."""
        receiver, sender = edges
        hidden = basis
        for weight in self.radial[:-1]:
            hidden = silu(linear(hidden, weight))
        weights = linear(hidden, self.radial[-1])
        messages = self.convolution(self.up(x)[sender], y, weights)
        total = messages.new_zeros(len(x), messages.shape[1]).index_add(0, receiver, messages)
        product = self.outer(self.down(total / self.norm), one_body)
        updated = self.product(product) + self.skip(x, species)
        return updated, silu(self.hidden(updated)) @ self.heads / math.sqrt(len(self.heads))


class E3nnRace(nn.Module):
    """Atomic energies of a graph."""

    def __init__(self, spec: RaceSpec, *, pruned: bool) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Parameter(torch.randn(len(spec.elements), spec.features))
        irreps = layer_irreps(spec, pruned=pruned)
        self.one_body = o3.Linear(irreps[0], irreps[0])
        self.layers = nn.ModuleList(Layer(spec, a, b) for a, b in itertools.pairwise(irreps))

    def forward(self, batch: GraphBatch) -> Tensor:
        """Energy of each atom, eV, (N,) float64."""
        spec, (receiver, sender) = self.spec, batch.edges
        offset = torch.einsum(
            "ei,eij->ej", batch.shifts, batch.cell[batch.structure_index[receiver]]
        )
        vectors = batch.positions[sender] - batch.positions[receiver] + offset
        basis = bessel_basis(
            vectors.norm(dim=1),
            cutoff=spec.cutoff,
            count=spec.radial_basis,
            power=spec.envelope_power,
        )
        y = o3.spherical_harmonics(
            list(range(spec.l_max + 1)), vectors, normalize=True, normalization="component"
        )
        species = nn.functional.one_hot(batch.species, len(spec.elements)).to(vectors)
        x = self.embedding[batch.species]
        one_body, heads = self.one_body(x), []
        for layer in self.layers:
            x, values = layer(x, one_body, species, batch.edges, y, basis)
            heads.append(values)
        shift = torch.tensor(spec.shift, dtype=torch.float64)
        return sum(heads)[:, 0].double() * spec.scale + shift[batch.species]


def layer_irreps(spec: RaceSpec, *, pruned: bool) -> list[o3.Irreps]:
    """Irreps of A⁰ and after every layer: all that can be reached, or all that is used."""
    irreps = [o3.Irreps([(spec.features, SCALAR)])]
    if pruned:
        outputs = [layer.outputs for layer in race_layout(spec)]
        return irreps + [o3.Irreps([(n, str(irrep)) for irrep, n in o.items()]) for o in outputs]
    harmonics = o3.Irreps.spherical_harmonics(spec.l_max)
    hidden = o3.Irreps([(n, str(irrep)) for irrep, n in parse_irreps(spec.hidden).items()])
    for _ in range(spec.layers):
        reached = {irrep for _, irrep in _paths(irreps[-1], harmonics, hidden)[0]}
        irreps.append(o3.Irreps([item for item in hidden if item.ir in reached]))
    return irreps


def _paths(
    inputs: o3.Irreps, harmonics: o3.Irreps, outputs: o3.Irreps
) -> tuple[o3.Irreps, list[tuple[int, int, int, str, bool]]]:
    """Irreps of the messages and channel-wise instructions, in the order of bayrace's plan."""
    blocks, instructions = [], []
    for _, target in outputs:
        for i, (channels, source) in enumerate(inputs):
            for j, (_, harmonic) in enumerate(harmonics):
                if target in source * harmonic:
                    instructions.append((i, j, len(blocks), "uvu", True))
                    blocks.append((channels, target))
    return o3.Irreps(blocks), instructions


class E3nnPeer:
    """The published formulation behind the calls of the benchmarks."""

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "e3nn-paper": {"like": "bayrace-paper", "pruned": False},
        "e3nn-paper-pruned": {"like": "bayrace-paper", "pruned": True},
    }
    weights = (1.0, 100.0)
    ema = 0.99

    def build(self, size: str, statistics: Statistics, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        choice = self.sizes[size]
        spec = specification(SIZES[choice["like"]], statistics)
        return E3nnRace(spec, pruned=choice["pruned"])

    def graphs(self, frames: list[Atoms], statistics: Statistics) -> list[Any]:
        self.species = len(statistics.elements)
        elements = tuple(statistics.elements)
        return [
            (
                build_graph(
                    frame_from_atoms(atoms, keys=None, index=i),
                    elements=elements,
                    cutoff=statistics.cutoff,
                ),
                atoms.get_potential_energy() if atoms.calc else 0.0,
                torch.from_numpy(atoms.get_forces() if atoms.calc else 0.0 * atoms.positions),
            )
            for i, atoms in enumerate(frames)
        ]

    def collate(self, graphs: list[Any]) -> Any:
        parts, energies, forces = zip(*graphs, strict=True)
        batch = collate(parts, elements_count=self.species, dtype=torch.float32)
        order = batch_order(batch)
        return batch, torch.tensor(energies), torch.cat(forces)[order].float()

    def predict(self, model: nn.Module, batch: Any, *, training: bool) -> Predicted:
        graph, energies, forces = batch
        energy, gradient = energy_and_gradient(model, graph, training=training)
        return Predicted(energy, -gradient, energies, forces, graph.atom_counts())

    def parameter_groups(self, model: nn.Module, lr: float) -> list[dict[str, Any]]:
        return [{"params": list(model.parameters()), "lr": lr}]


def energy_and_gradient(
    model: nn.Module, batch: GraphBatch, *, training: bool
) -> tuple[Tensor, Tensor]:
    """Energies (S,) and their derivative by the positions (N, 3), by autograd."""
    batch.positions.requires_grad_(True)
    atomic = model(batch)
    (gradient,) = torch.autograd.grad(atomic.sum(), batch.positions, create_graph=training)
    energy = atomic.new_zeros(batch.n_structures).index_add(0, batch.structure_index, atomic)
    return energy, gradient


def copy_weights(params: Params, race: Race, model: E3nnRace) -> None:
    """Give the e3nn network the weights of ours; irreps that ours prunes get zeros."""
    with torch.no_grad():
        model.embedding.copy_(params["embedding"])
        model.one_body.weight.copy_(params["one_body"].flatten())
        for known, layer in zip(race.layout, model.layers, strict=True):
            _copy_layer(params, known.name, layer)


def _copy_layer(params: Params, name: str, layer: Layer) -> None:
    def take(part: str, irrep: o3.Irrep, shape: tuple[int, ...]) -> Tensor:
        key = f"{name}.{part}.{irrep}"
        return params[key] if key in params else torch.zeros(shape, dtype=torch.float64)

    for part in ("up", "down", "product"):
        linear = getattr(layer, part)
        for instruction, block in zip(linear.instructions, _views(linear), strict=True):
            irrep = linear.irreps_in[instruction.i_in].ir
            value = take(part, irrep, tuple(block.shape))
            if value.dim() == 3:  # W_uvw, v ⊗ a¹ in the order (v, u)
                value = value.transpose(0, 1).flatten(0, 1)
            block.copy_(value)
    for instruction, block in zip(layer.skip.instructions, _views(layer.skip), strict=True):
        irrep = layer.skip.irreps_in1[instruction.i_in1].ir
        rows, species, columns = block.shape
        value = take("skip", irrep, (species, rows, columns))
        block.copy_(value.transpose(0, 1) * math.sqrt(species))  # e3nn divides by √(K·Z)
    _copy_radial(params, name, layer)
    layer.hidden.weight.copy_(params[f"{name}.readout.hidden"].flatten())
    layer.heads[:, :1] = params[f"{name}.readout.scalars"][:, :1]


def _copy_radial(params: Params, name: str, layer: Layer) -> None:
    """Radial networks; columns of the last matrix belong to paths, some of them pruned."""
    count = len(layer.radial)
    for k in range(count - 1):
        layer.radial[k].copy_(params[f"{name}.radial.{k}"])
    ours = params[f"{name}.radial.{count - 1}"]
    layer.radial[count - 1].zero_()
    start = done = 0
    for instruction in layer.convolution.instructions:
        width = instruction.path_shape[0]
        target = layer.convolution.irreps_out[instruction.i_out].ir
        if f"{name}.down.{target}" in params:
            layer.radial[count - 1][:, start : start + width] = ours[:, done : done + width]
            done += width
        start += width
    assert done == ours.shape[1], "paths of the two networks differ"


def _views(module: Any) -> list[Tensor]:
    return list(module.weight_views())


def check(data: Path) -> None:
    """Energy and forces of both networks with the same weights, float64."""
    frames = read(data / "train.xyz")[:2]
    known = statistics(frames, CUTOFF)
    peer = E3nnPeer()
    for size, choice in E3nnPeer.sizes.items():
        spec = specification(SIZES[choice["like"]], known)
        race = Race(spec)
        params = race.init(0, dtype=torch.float64)
        model = _in_double(spec, pruned=choice["pruned"])
        copy_weights(params, race, model)
        graphs = [graph for graph, _, _ in peer.graphs(frames, known)]
        batch = collate(graphs, elements_count=len(known.elements), dtype=torch.float64)
        with torch.no_grad():
            ours = evaluate(race, params, batch)
        energy, gradient = energy_and_gradient(model, batch, training=False)
        error = float((energy.detach() / ours.energy - 1).abs().max())
        kick = float((gradient + ours.forces).abs().max() / ours.forces.abs().max())
        print(f"{size}: relative difference {error:.1e} of energies, {kick:.1e} of forces")
        assert max(error, kick) < 1e-9, f"{size} is not the network of {choice['like']}"


def _in_double(spec: RaceSpec, *, pruned: bool) -> E3nnRace:
    """The network with constants in float64: e3nn makes its tables in the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return E3nnRace(spec, pruned=pruned)
    finally:
        torch.set_default_dtype(before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=BENCH / "data/3bpa")
    check(parser.parse_args().data)
