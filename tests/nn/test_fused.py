"""The fused kernel equals the plain convolution: values, all derivatives, every transform."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, jacrev, vmap

from bayrace.core.graph import GraphBatch
from bayrace.nn import compiler, convolution
from bayrace.nn.convolution import Plan, convolve_plain
from bayrace.nn.fused import convolve_fused
from bayrace.nn.irreps import Irrep

SCALAR, VECTOR, TENSOR = Irrep(0, 1), Irrep(1, -1), Irrep(2, 1)
PLAN = Plan((SCALAR, VECTOR, TENSOR), 2, (SCALAR, VECTOR, TENSOR))
SMALL = Plan((SCALAR, VECTOR), 1, (SCALAR, VECTOR))
PLANS = (
    PLAN,
    SMALL,
    Plan((SCALAR,), 3, tuple(Irrep(degree, (-1) ** degree) for degree in range(4))),
    Plan((Irrep(0, -1), Irrep(3, -1)), 3, (Irrep(3, 1), Irrep(1, -1), Irrep(0, -1))),
    Plan((Irrep(1, 1), Irrep(1, -1)), 2, (Irrep(0, 1), Irrep(0, -1), Irrep(2, -1))),
)
Convolution = Callable[[Plan, Tensor, Tensor, Tensor, GraphBatch], Tensor]

pytestmark = pytest.mark.skipif(
    convolution.kernel_status().startswith("plain"), reason="no C compiler"
)


def random_graph(atoms: int, pairs: int, seed: int) -> GraphBatch:
    """Any multigraph closed under reversal: empty neighbourhoods, self-images, double edges."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(atoms, (2, pairs), generator=generator)
    receiver, sender = torch.cat((ends, ends.flip(0)), dim=1)
    order = torch.argsort(receiver, stable=True)
    place = torch.argsort(order)  # of each edge after sorting
    pair_edges = place.view(2, pairs)
    pair = (order % pairs) if pairs else order
    counts = torch.bincount(receiver, minlength=atoms)
    first = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    return GraphBatch(
        species=torch.zeros(atoms, dtype=torch.int64),
        positions=torch.zeros(atoms, 3),
        cell=torch.zeros(1, 3, 3),
        volume=torch.ones(1),
        edges=torch.stack((receiver[order], sender[order])),
        shifts=torch.zeros(2 * pairs, 3),
        structure_index=torch.zeros(atoms, dtype=torch.int64),
        first_edge=first,
        reverse=place.roll(pairs)[order],
        pair=pair,
        pair_edges=pair_edges,
        file_order=torch.arange(atoms),
        species_counts=(atoms,),
    )


def random_inputs(
    plan: Plan, batch: GraphBatch, channels: int, dtype: torch.dtype, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, Y, R and a gradient of the output."""
    generator = torch.Generator().manual_seed(seed)
    pairs = batch.pair_edges.shape[1]
    shapes = (
        (batch.n_atoms, plan.input_dim, channels),
        (pairs, plan.harmonics_dim),
        (pairs, len(plan.paths), channels),
        (batch.n_atoms, plan.rows, channels),
    )
    x, y, r, g = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return x, y, r, g


def derivatives(
    function: Convolution, plan: Plan, batch: GraphBatch, values: tuple[Tensor, ...], order: int
) -> list[Tensor]:
    """The output and its derivatives up to an order, contracted with fixed random tensors."""
    generator = torch.Generator().manual_seed(7)
    x, y, r, g = (value.clone().requires_grad_() for value in values)
    found = [function(plan, x, y, r, batch)]
    current: list[Tensor] = [(found[0] * g).sum()]
    for _ in range(order):
        current = list(torch.autograd.grad(current, (x, y, r, g), create_graph=True))
        found += current
        weights = [
            torch.randn(value.shape, generator=generator, dtype=value.dtype) for value in current
        ]
        current = [(value * weight).sum() for value, weight in zip(current, weights, strict=True)]
        current = [torch.stack(current).sum()]
    return found


def assert_same(first: list[Tensor], second: list[Tensor], tolerance: float) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        scale = max(1.0, other.abs().max().item()) if other.numel() else 1.0
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)


@settings(max_examples=40, deadline=None)
@given(
    plan=st.sampled_from(PLANS),
    channels=st.sampled_from((1, 3, 8, 17, 32, 64)),
    atoms=st.integers(1, 7),
    pairs=st.integers(0, 12),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values_and_derivatives(
    plan: Plan, channels: int, atoms: int, pairs: int, double: bool, seed: int
) -> None:
    dtype, tolerance = (torch.float64, 1e-12) if double else (torch.float32, 1e-5)
    batch = random_graph(atoms, pairs, seed)
    values = random_inputs(plan, batch, channels, dtype, seed)
    ours = derivatives(convolve_fused, plan, batch, values, order=2)
    reference = derivatives(convolve_plain, plan, batch, values, order=2)
    assert_same(ours, reference, tolerance)


def test_third_derivatives() -> None:
    batch = random_graph(4, 6, seed=1)
    values = random_inputs(PLAN, batch, 3, torch.float64, seed=2)
    ours = derivatives(convolve_fused, PLAN, batch, values, order=3)
    assert_same(ours, derivatives(convolve_plain, PLAN, batch, values, order=3), 1e-12)


def test_many_neighbours() -> None:
    """More edges than one chunk of a receiver, and more work than one thread gets."""
    batch = random_graph(3, 600, seed=3)
    values = random_inputs(PLAN, batch, 32, torch.float64, seed=4)
    ours = derivatives(convolve_fused, PLAN, batch, values, order=2)
    assert_same(ours, derivatives(convolve_plain, PLAN, batch, values, order=2), 1e-12)


def test_threads_agree_and_repeat() -> None:
    batch = random_graph(9, 700, seed=5)
    values = random_inputs(PLAN, batch, 32, torch.float32, seed=6)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two = derivatives(convolve_fused, PLAN, batch, values, order=2)
        again = derivatives(convolve_fused, PLAN, batch, values, order=2)
        torch.set_num_threads(1)
        one = derivatives(convolve_fused, PLAN, batch, values, order=2)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(two, again, strict=True))
    assert_same(one, two, 1e-5)


def test_gradcheck() -> None:
    batch = random_graph(3, 3, seed=8)
    x, y, r, _ = random_inputs(SMALL, batch, 2, torch.float64, seed=9)
    inputs = tuple(value.requires_grad_() for value in (x, y, r))

    def function(x: Tensor, y: Tensor, r: Tensor) -> Tensor:
        return convolve_fused(SMALL, x, y, r, batch)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_strided_inputs() -> None:
    batch = random_graph(4, 5, seed=10)
    x, y, r, _ = random_inputs(SMALL, batch, 8, torch.float64, seed=11)
    strided = (x.mT.contiguous().mT, y.mT.contiguous().mT, r.mT.contiguous().mT)
    ours = convolve_fused(SMALL, *strided, batch)
    torch.testing.assert_close(ours, convolve_plain(SMALL, x, y, r, batch))


MOLECULE = random_graph(4, 6, seed=12)
X, Y, R, _ = random_inputs(SMALL, MOLECULE, 8, torch.float64, seed=13)
POSITION = torch.linspace(0.1, 1, 6, dtype=torch.float64)


def forces(function: Convolution, weight: Tensor, position: Tensor) -> Tensor:
    """The gradient of two layers that share position-dependent harmonics and radial weights."""

    def energy(position: Tensor) -> Tensor:
        y, r = torch.sin(Y + position[:, None]), weight * torch.cos(R * position.sum())
        hidden = function(SMALL, X, y, r, MOLECULE)[:, :4].tanh()
        return (function(SMALL, hidden, y, r, MOLECULE) ** 2).sum()

    result: Tensor = grad(energy)(position)
    return result


def test_force_training() -> None:
    """An outer backward over an inner torch.func.grad, as in training on forces."""
    found = []
    for function in (convolve_fused, convolve_plain):
        weight = torch.linspace(0.5, 1, 8, dtype=torch.float64, requires_grad=True)
        (forces(function, weight, POSITION) ** 2).sum().backward()
        assert weight.grad is not None
        found.append(weight.grad)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_functional_transforms() -> None:
    """vmap over members, grad of grad, Jacobians, and vmap of all of them."""
    weights = torch.linspace(0.5, 1, 24, dtype=torch.float64).view(3, 8)

    def everything(function: Convolution) -> list[Tensor]:
        def loss(weight: Tensor) -> Tensor:
            return (forces(function, weight, POSITION) ** 2).sum()

        return [
            vmap(lambda w: forces(function, w, POSITION))(weights),
            vmap(grad(loss))(weights),
            jacrev(lambda w: forces(function, w, POSITION))(weights[0]),
            vmap(lambda p: forces(function, weights[0], p))(torch.stack((POSITION, POSITION / 2))),
            grad(lambda w: vmap(loss)(w).sum())(weights),
        ]

    assert_same(everything(convolve_fused), everything(convolve_plain), 1e-12)


def test_compile() -> None:
    weight = torch.linspace(0.5, 1, 8, dtype=torch.float64, requires_grad=True)

    def seam(plan: Plan, x: Tensor, y: Tensor, r: Tensor, batch: GraphBatch) -> Tensor:
        return convolution.convolve(plan, x, y, r, batch, kernel="fused")

    def loss(weight: Tensor) -> Tensor:
        return (forces(seam, weight, POSITION) ** 2).sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(weight), weight)[0]
    torch.testing.assert_close(found, torch.autograd.grad(loss(weight), weight)[0])


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="radial"):
        convolve_fused(SMALL, X, Y, R[1:], MOLECULE)
    with pytest.raises(ValueError, match="float32"):
        convolve_fused(SMALL, X, Y.float(), R, MOLECULE)


def test_two_processes_build_at_once(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYRACE_CACHE", str(tmp_path))
    code = (
        "import torch; from bayrace.nn.passes import load;"
        "load('0e*1>0e+1o', torch.float32, 8); print('built')"
    )
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in both] == ["built"] * 2
    assert len(list(compiler.cache_folder().glob("*.so"))) == 4
