"""The network as one compiled program is the network of operators: values and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Outputs, Params
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.network import Race
from bayrace.models.race.spec import RaceSpec
from bayrace.testing import graph_of, random_frame, small_spec

ELEMENTS = (1, 6, 8)
CELL = np.array([[3.1, 0, 0], [0.6, 2.9, 0], [0.2, -0.5, 3.3]])  # shorter than the cutoff
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def spec_of(**changes: Any) -> RaceSpec:
    noise = NoiseSpec("joint", "extensive", "equivariant", stress=True)
    values = {"radial_knots": 16, "self_contraction": True, "noise": noise, "layers": 3}
    return small_spec(ELEMENTS, **(values | changes))


SPECS = {
    "all parts": spec_of(shortest=((1.6,) * 3,) * 3),
    "no products": spec_of(self_contraction=False, shift=(0.1, 0.2, 0.3)),
    "one layer": spec_of(layers=1, noise=NoiseSpec("none", "extensive", "equivariant", False)),
    "paper's noise": spec_of(noise=NoiseSpec("joint", "extensive", "cholesky", stress=True)),
    "members": spec_of(noise=NoiseSpec("shallow", "extensive", "equivariant", False, members=3)),
    "scalars": spec_of(
        hidden="4x0e", layers=2, noise=NoiseSpec("energy", "extensive", "equivariant", False)
    ),
    "both parities": spec_of(hidden="4x0e+4x0o+4x1e+4x1o+4x2e", l_max=3, layers=2),
    "more features": spec_of(features=8, radial_hidden=(8, 8)),
    "gates": spec_of(gate=True, self_contraction=False),
    "gates and products": spec_of(gate=True),
    "gates of all irreps": spec_of(
        gate=True, self_contraction=False, hidden="4x(0,1,2,3)", l_max=3, layers=2
    ),
    "gated scalars": spec_of(
        gate=True,
        hidden="4x0e",
        layers=3,
        noise=NoiseSpec("none", "extensive", "equivariant", False),
    ),
}


@pytest.fixture(params=list(SPECS))
def spec(request: pytest.FixtureRequest) -> RaceSpec:
    return SPECS[request.param]


def batch_of(model: Race, dtype: torch.dtype) -> GraphBatch:
    """A molecule, a small cell without hydrogen, and an atom alone."""
    frames = (
        random_frame(ELEMENTS, 7, seed=2),
        random_frame((6, 8), 3, seed=3, cell=CELL),
        random_frame(ELEMENTS, 1, seed=4),
    )
    return graph_of(model, *frames).to(dtype=dtype)


def numbers(outputs: Outputs) -> list[Tensor]:
    """All that is a number; stresses are those of the cell alone."""
    values = [value for value in outputs if value is not None]
    return [value[1] if value is outputs.stress else value for value in values]


def objective(outputs: Outputs) -> Tensor:
    """Depends on everything but the hidden numbers, and not linearly."""
    values = numbers(outputs._replace(last_features=None))
    return torch.stack([(value.double() + 0.3).square().sum() for value in values]).sum()


def learnt(model: Race, params: Params, batch: GraphBatch) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients of the objective by every parameter."""
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    outputs = evaluate(model, leaves, batch, stress=True)
    gradients = torch.autograd.grad(
        objective(outputs), list(leaves.values()), materialize_grads=True
    )
    return [value.detach() for value in numbers(outputs)], list(gradients)


def same(first: list[Tensor], second: list[Tensor], tolerance: float) -> None:
    for one, other in zip(first, second, strict=True):
        scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)


@contextmanager
def only_compiled(model: Race) -> Iterator[None]:
    """Fail where the network of operators is asked."""
    ask: Callable[..., Any] = model._readouts

    def refuse(*_: object) -> Any:
        raise AssertionError("the operators were asked")

    model._readouts = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        model._readouts = ask  # type: ignore[method-assign]


SINGLE = ("all parts", "no products", "gates")  # building kernels for the others takes too long


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float64) for name in SPECS] + [(name, torch.float32) for name in SINGLE],
)
def test_training_is_that_of_plain_pytorch(name: str, dtype: torch.dtype) -> None:
    spec = SPECS[name]
    fast, plain = Race(spec, kernel="fused"), Race(spec, kernel="plain")
    params, batch = fast.init(1, dtype=dtype), batch_of(fast, dtype)
    with only_compiled(fast):
        values, gradients = learnt(fast, params, batch)
    expected = learnt(plain, params, batch)
    same(values, expected[0], TOLERANCE[dtype])
    same(gradients, expected[1], TOLERANCE[dtype])


@pytest.mark.parametrize("folded", [False, True])
def test_prediction_is_that_of_plain_pytorch(spec: RaceSpec, folded: bool) -> None:
    fast, plain = Race(spec, kernel="fused"), Race(spec, kernel="plain")
    params, batch = fast.init(1, dtype=torch.float64), batch_of(fast, torch.float64)
    expected = evaluate(plain, params, batch, stress=True)
    with torch.no_grad(), only_compiled(fast):
        found = evaluate(fast, fast.fold(params) if folded else params, batch, stress=True)
    assert not found.forces.requires_grad
    same(numbers(found), numbers(expected), 1e-12)


@pytest.mark.parametrize("name", ["all parts", "gates"])
@settings(deadline=None, max_examples=20)
@given(atoms=st.integers(1, 9), seed=st.integers(0, 10**6), periodic=st.booleans())
def test_any_structure(name: str, atoms: int, seed: int, periodic: bool) -> None:
    spec = SPECS[name]  # pairs below 1.55 Å are too close in the former
    fast, plain = Race(spec, kernel="fused"), Race(spec, kernel="plain")
    cell = np.eye(3) * (3.0 + 0.5 * atoms) if periodic else None
    frame = random_frame(ELEMENTS, atoms, seed=seed, cell=cell, apart=1.2)
    batch, params = graph_of(fast, frame), fast.init(seed, dtype=torch.float64)
    one, other = (
        evaluate(model, params, batch, stress=periodic)._replace(last_features=None)
        for model in (fast, plain)
    )
    for value, expected in zip(one, other, strict=True):
        if value is not None and expected is not None:
            torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "last"), [("all parts", "layer3.contract.0e"), ("gates", "layer2.gate.1o")]
)
def test_gradients_of_forces_are_exact(name: str, last: str) -> None:
    """Gradcheck of forces is gradgradcheck of the energy."""
    model = Race(SPECS[name], kernel="fused")
    params, batch = model.init(3, dtype=torch.float64), batch_of(model, torch.float64)
    some = ("embedding", "layer1.up.0e", "layer2.readout.scalars", last)

    def outputs(*values: Tensor) -> tuple[Tensor, ...]:
        found = evaluate(model, params | dict(zip(some, values, strict=True)), batch, stress=True)
        assert found.forces_head is not None
        assert found.stress is not None
        return found.energy, found.forces, found.forces_head, found.stress[1]

    leaves = tuple(params[name].clone().requires_grad_() for name in some)
    assert torch.autograd.gradcheck(outputs, leaves, fast_mode=True)
    # create_graph, and gradients that are differentiated again
    assert torch.autograd.gradgradcheck(outputs, leaves, fast_mode=True, atol=1e-4)


def test_several_gradients_at_once() -> None:
    """Rows of a Jacobian, as LLPR and Laplace take them, and gradients of the hidden numbers."""
    fast, plain = (Race(SPECS["all parts"], kernel=kernel) for kernel in ("fused", "plain"))
    params, batch = fast.init(3, dtype=torch.float64), batch_of(fast, torch.float64)
    rows = torch.randn(4, batch.n_atoms, 3, generator=torch.Generator().manual_seed(1)).double()
    found = []
    for model in (fast, plain):
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        outputs = evaluate(model, leaves, batch)
        every = list(leaves.values())
        options: dict[str, Any] = {"materialize_grads": True, "retain_graph": True}
        one_by_one = [torch.autograd.grad(outputs.forces, every, row, **options) for row in rows]
        together = torch.autograd.grad(
            outputs.forces, every, rows, is_grads_batched=True, **options
        )
        same(list(together), [torch.stack(each) for each in zip(*one_by_one, strict=True)], 1e-12)
        assert outputs.last_features is not None
        hidden = torch.autograd.grad(
            outputs.last_features.square().sum(), every, materialize_grads=True
        )
        found.append([*together, *hidden])
    same(*found, 1e-12)


@pytest.mark.parametrize("name", ["all parts", "gates"])
def test_threads_change_nothing_but_rounding(name: str) -> None:
    """And a number of threads gives the same bits again and again, or sums would race."""
    model = Race(SPECS[name], kernel="fused")
    frames = [random_frame(ELEMENTS, 80, seed=seed) for seed in range(8)]  # enough for all steps
    batch, params = graph_of(model, *frames), model.init(3, dtype=torch.float64)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 2, 2, 3):
            torch.set_num_threads(threads)
            leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
            outputs = evaluate(model, leaves, batch)
            loss = outputs.forces.square().sum() + outputs.energy.sum()
            grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            found.append([outputs.energy.detach(), outputs.forces.detach(), *grads])
    finally:
        torch.set_num_threads(before)
    alone, first, *again, three = found
    same(first, alone, 1e-12)
    same(three, alone, 1e-12)
    for other in again:
        assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))


def test_options_it_does_not_know_take_the_operators() -> None:
    for changes in ({"pair_radial": True}, {"radial_knots": 0}):
        model = Race(spec_of(**changes), kernel="auto")
        params = model.init(0, dtype=torch.float64)
        assert model.derivatives(params, batch_of(model, torch.float64)) is None


def test_weights_that_change_are_not_taken_for_the_old_ones() -> None:
    """Transposed matrices are kept for weights that stay, not for changed or freed ones."""
    model = Race(SPECS["all parts"], kernel="auto")
    batch = batch_of(model, torch.float64)
    written = model.compiled.program(torch.float64, folded=True, learning=False)
    assert written is not None
    assert written.turned

    def forces(params: Params) -> Tensor:
        with torch.no_grad():
            return evaluate(model, params, batch).forces

    def anew(params: Params) -> Tensor:
        written.kept.clear()
        return forces(params)

    params = model.fold(model.init(0, dtype=torch.float64))
    first = forces(params)
    assert torch.equal(forces(params), first)
    assert len(written.kept) == 1
    for value in params.values():
        value.mul_(1.1)
    found = forces(params)
    assert not torch.equal(found, first)
    assert torch.equal(found, anew(params))
    for seed in range(12):  # each may get the memory of one before
        params = model.fold(model.init(seed, dtype=torch.float64))
        found = forces(params)
        assert len(written.kept) <= 4
        assert torch.equal(found, anew(params))
    with torch.inference_mode():
        unknown = {name: value.clone() for name, value in params.items()}
        written.kept.clear()
        assert torch.equal(evaluate(model, unknown, batch).forces, found)
        assert not written.kept
