"""torch.compile and torch.export of the whole network, compiled operators included."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Params
from bayrace.models.derivatives import evaluate
from bayrace.models.race.network import Race
from bayrace.nn import tables
from bayrace.nn.kernels import Kernel, kernel_status
from bayrace.testing import graph_of, random_frame, small_spec

needs_compiler = pytest.mark.skipif(kernel_status().startswith("plain"), reason="no C compiler")
KERNELS = ("plain", pytest.param("fused", marks=needs_compiler))
OPERATORS = {f"bayrace.{name}.default" for name in ("convolve", "mix", "spline", "square")}
ARRAYS = tuple(field.name for field in fields(GraphBatch) if field.name != "species_counts")


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: nothing traced, and no constant made by a call outside the tracer."""
    torch._dynamo.reset()
    monkeypatch.setattr(tables, "_names", {})


def network(kernel: Kernel, **changes: Any) -> tuple[Race, Params]:
    """Every operator is in it: splines per pair of elements, A ⊗ A, gates."""
    parts = {"radial_knots": 16, "self_contraction": True, "pair_radial": True, "gate": True}
    model = Race(small_spec((1, 8), **(parts | changes)), kernel=kernel)
    params = model.init(0, dtype=torch.float64)
    return model, {name: value.requires_grad_() for name, value in params.items()}


def graph(model: Race, atoms: int = 6, *, structures: int = 2) -> GraphBatch:
    frames = (random_frame((1, 8), atoms, seed=seed) for seed in range(structures))
    return graph_of(model, *frames)


def assert_close(found: Any, expected: Any) -> None:
    """To 1e-10 of the largest number."""
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, other.abs().max().item())
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10 * scale)


def gradients(value: Tensor, params: Params) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value.sum(), list(params.values()), materialize_grads=True)


@pytest.mark.parametrize("kernel", KERNELS)
def test_compiled_energy(kernel: Kernel) -> None:
    """One graph, from a cold start, with the gradient of all weights."""
    model, params = network(kernel, layers=1 if kernel == "plain" else 2)
    batch = graph(model)
    compiled = torch.compile(
        lambda params: model.energy(params, batch).energy, backend="aot_eager", fullgraph=True
    )
    found, expected = compiled(params), model.energy(params, batch).energy
    assert_close([found], [expected])
    assert_close(gradients(found, params), gradients(expected, params))


@needs_compiler
def test_compiled_energy_of_other_sizes() -> None:
    """Two graphs are enough for structures of any size."""
    model, params = network("fused", layers=1, gate=False)
    graphs = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    compiled = torch.compile(
        lambda batch: model.energy(params, batch).energy, backend=backend, fullgraph=True
    )
    for atoms, structures in ((6, 2), (7, 3), (9, 2), (12, 4)):
        batch = graph(model, atoms, structures=structures)
        assert_close([compiled(batch)], [model.energy(params, batch).energy])
    assert len(graphs) == 2


def forces_loss(model: Race, params: Params, batch: GraphBatch) -> Tensor:
    outputs = evaluate(model, params, batch)
    return outputs.energy.square().sum() + outputs.forces.square().sum()


@needs_compiler
def test_compiled_training_on_forces() -> None:
    """Energy, forces and the gradient of a loss on both, in one graph."""
    model, params = network("fused")
    batch = graph(model)
    compiled = torch.compile(
        lambda params: forces_loss(model, params, batch), backend="aot_eager", fullgraph=True
    )
    found, expected = compiled(params), forces_loss(model, params, batch)
    assert_close([found], [expected])
    assert_close(gradients(found, params), gradients(expected, params))


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_inductor_training_on_forces() -> None:
    """The same by the compiler that people use."""
    model, params = network("fused", layers=1, gate=False)
    batch = graph(model)
    compiled = torch.compile(
        lambda params: forces_loss(model, params, batch), backend="inductor", fullgraph=True
    )
    found, expected = compiled(params), forces_loss(model, params, batch)
    assert_close([found], [expected])
    assert_close(gradients(found, params), gradients(expected, params))


class Energy(torch.nn.Module):
    """What is exported: weights inside, the arrays of a graph and its counts as arguments."""

    def __init__(self, model: Race, params: Params) -> None:
        super().__init__()
        self.model = model
        self.names = {name: name.replace(".", "_") for name in params}
        for name, value in params.items():
            self.register_buffer(self.names[name], value.detach())

    def forward(self, arrays: tuple[Tensor, ...], counts: tuple[int, ...]) -> Tensor:
        batch = GraphBatch(**dict(zip(ARRAYS, arrays, strict=True)), species_counts=counts)
        params = {name: getattr(self, held) for name, held in self.names.items()}
        return self.model.energy(params, batch).energy


def arguments(batch: GraphBatch) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return tuple(getattr(batch, name) for name in ARRAYS), batch.species_counts


@needs_compiler
@pytest.mark.parametrize("strict", [False, True])
def test_exported_energy(strict: bool) -> None:
    model, params = network("fused", layers=1)
    batch = graph(model)
    program = torch.export.export(Energy(model, params), arguments(batch), strict=strict)
    assert {str(node.target) for node in program.graph.nodes} >= OPERATORS
    positions = batch.positions.clone().requires_grad_()
    arrays, counts = arguments(batch)
    moved = tuple(
        positions if name == "positions" else value
        for name, value in zip(ARRAYS, arrays, strict=True)
    )
    found = program.module()(moved, counts)
    assert_close([found], [model.energy(params, batch).energy])
    (gradient,) = torch.autograd.grad(found.sum(), positions)
    assert_close([-gradient], [evaluate(model, params, batch).forces])


@needs_compiler
def test_exported_energy_of_other_sizes(tmp_path: Any) -> None:
    """One program for structures of any size, saved and loaded again."""
    model, params = network("fused", layers=1, gate=False)
    batch = graph(model)
    arrays, counts = arguments(batch)
    sizes = (
        tuple(dict.fromkeys(range(value.ndim), Dim.AUTO) for value in arrays),
        tuple(Dim.AUTO for _ in counts),
    )
    program = torch.export.export(
        Energy(model, params), (arrays, counts), dynamic_shapes=sizes, strict=True
    )
    torch.export.save(program, tmp_path / "energy.pt2")
    loaded = torch.export.load(tmp_path / "energy.pt2").module()
    for atoms, structures in ((6, 2), (9, 3), (5, 4)):
        other = graph(model, atoms, structures=structures)
        assert_close([loaded(*arguments(other))], [model.energy(params, other).energy])


@needs_compiler
def test_export_leaves_nothing_behind() -> None:
    """Constants that are first made while tracing are real numbers for everyone after."""
    model, params = network("plain", layers=1)
    batch = graph(model)
    torch.export.export(Energy(model, params), arguments(batch), strict=False)
    again = Race(model.spec, kernel="plain").energy(params, batch).energy
    assert type(again) is Tensor
    fused = Race(model.spec, kernel="fused").energy(params, batch).energy
    assert_close([again], [fused])
