"""The compiled product A ⊗ A equals the plain one: values, all derivatives, every transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, jacrev, vmap

from bayrace.nn.contraction import SelfProduct, parse_product, square_plain
from bayrace.nn.coupling import clebsch_gordan
from bayrace.nn.irreps import Irrep
from bayrace.nn.kernels import kernel_status
from bayrace.nn.products import prepare, square, square_fused

pytestmark = pytest.mark.skipif(kernel_status().startswith("plain"), reason="no C compiler")

SCALAR, VECTOR, TENSOR = Irrep(0, 1), Irrep(1, -1), Irrep(2, 1)
NATURAL = SelfProduct((SCALAR, VECTOR, TENSOR), (SCALAR, VECTOR, TENSOR))
SMALL = SelfProduct((SCALAR, VECTOR), (SCALAR, VECTOR))
EMPTY = SelfProduct((VECTOR,), (VECTOR,))  # the only coupling of this kind is antisymmetric
PRODUCTS = (
    NATURAL,
    SMALL,
    SelfProduct((Irrep(0, -1), Irrep(1, 1), VECTOR), (Irrep(1, 1), VECTOR, Irrep(2, -1))),
    SelfProduct((Irrep(3, -1),), (SCALAR, Irrep(1, 1), TENSOR)),
)
ALL = tuple(Irrep(degree, parity) for degree in range(4) for parity in (1, -1))


def random_features(
    product: SelfProduct,
    atoms: int,
    channels: int,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (atoms, product.input_dim, channels)
    return torch.randn(shape, generator=generator, dtype=dtype)


@settings(max_examples=60, deadline=None)
@given(
    product=st.sampled_from(PRODUCTS),
    channels=st.sampled_from((1, 3, 8, 17, 32)),
    atoms=st.integers(0, 7),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values_and_derivatives(
    product: SelfProduct,
    channels: int,
    atoms: int,
    double: bool,
    seed: int,
    derivatives: Any,
    assert_same: Any,
) -> None:
    """With respect to x and to the cotangent, so that `mixed` and `transposed` are in it."""
    dtype, tolerance = (torch.float64, 1e-12) if double else (torch.float32, 1e-5)
    x = random_features(product, atoms, channels, dtype=dtype, seed=seed)
    ours = derivatives(lambda x: square_fused(product, x), x, order=2)
    assert_same(ours, derivatives(lambda x: square_plain(product, x), x, order=2), tolerance)


@settings(max_examples=40, deadline=None)
@given(
    inputs=st.sets(st.sampled_from(ALL), min_size=1, max_size=4),
    outputs=st.sets(st.sampled_from(ALL), min_size=1, max_size=4),
    atoms=st.integers(0, 3),
)
def test_plain_is_the_definition(inputs: set[Irrep], outputs: set[Irrep], atoms: int) -> None:
    """Any irreps against Σ CG x x written out, in the promised order of rows."""
    product = SelfProduct(tuple(sorted(inputs)), tuple(sorted(outputs)))
    assert parse_product(product.key) == product
    x = random_features(product, atoms, 2).numpy()
    parts, start = {}, 0
    for irrep in product.inputs:
        parts[irrep] = x[:, start : start + irrep.dim]
        start += irrep.dim
    rows = []
    for target in product.outputs:
        tables = [
            np.einsum("abm,nac,nbc->mnc", clebsch_gordan(a.l, b.l, target.l), parts[a], parts[b])
            for a, b in product.couplings(target)
        ]
        rows += [table[m] for m in range(target.dim) for table in tables]
    found = square_plain(product, torch.from_numpy(x))
    assert found.shape == (atoms, product.rows, 2)
    expected = np.stack(rows, 1) if rows else np.zeros((atoms, 0, 2))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def test_third_derivatives(derivatives: Any, assert_same: Any) -> None:
    x = random_features(NATURAL, 3, 3)
    ours = derivatives(lambda x: square_fused(NATURAL, x).sin(), x, order=3)
    assert_same(ours, derivatives(lambda x: square_plain(NATURAL, x).sin(), x, order=3), 1e-12)


def test_gradcheck() -> None:
    x = random_features(SMALL, 2, 2).requires_grad_()
    g = torch.randn(2, SMALL.rows, 2, dtype=torch.float64).requires_grad_()
    y = random_features(SMALL, 2, 2, seed=1).requires_grad_()
    operators = torch.ops.bayrace
    for function, inputs in (
        (lambda x: operators.square(SMALL.key, x), (x,)),
        (lambda x, y: operators.mixed(SMALL.key, x, y), (x, y)),
        (lambda g, x: operators.transposed(SMALL.key, g, x), (g, x)),
    ):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


def test_strided_inputs() -> None:
    x = random_features(NATURAL, 4, 8)
    strided = x.mT.contiguous().mT
    torch.testing.assert_close(square_fused(NATURAL, strided), square_plain(NATURAL, x))


@pytest.mark.parametrize("product", [SMALL, NATURAL])
@pytest.mark.parametrize("dim", [0, 1, 3])
def test_functional_transforms(product: SelfProduct, dim: int, assert_same: Any) -> None:
    """Members along any dimension, with shared and own scales; gradients inside and outside."""
    members = torch.stack([random_features(product, 2, 3, seed=seed) for seed in range(4)])
    scales = torch.linspace(0.5, 1, 4, dtype=torch.float64)

    def everything(function: Any) -> list[Tensor]:
        def energy(x: Tensor, scale: Tensor) -> Tensor:
            return (scale * function(product, x)).sin().sum()

        def loss(x: Tensor, scale: Tensor) -> Tensor:
            return grad(energy)(x, scale).square().sum()

        moved = members.movedim(0, dim)
        return [
            vmap(energy, in_dims=(dim, None))(moved, scales[0]),
            vmap(energy, in_dims=(None, 0))(members[0], scales),
            *vmap(grad(energy, argnums=(0, 1)), in_dims=(dim, 0))(moved, scales),
            *vmap(grad(loss, argnums=(0, 1)), in_dims=(dim, 0))(moved, scales),
            vmap(grad(loss), in_dims=(None, 0))(members[0], scales),
            jacrev(lambda scale: grad(energy)(members[0], scale))(scales[0]),
            grad(lambda x: vmap(loss, in_dims=(dim, None))(x, scales[1]).sum())(moved),
        ]

    assert_same(everything(square_fused), everything(square_plain), 1e-12)


def test_members_without_atoms() -> None:
    none = torch.zeros(3, 0, SMALL.input_dim, 4, dtype=torch.float64)
    assert vmap(lambda x: square_fused(SMALL, x))(none).shape == (3, 0, SMALL.rows, 4)


def test_no_couplings() -> None:
    """A product without rows has nothing to compile, and an empty result with a gradient of 0."""
    assert EMPTY.rows == 0
    x = random_features(EMPTY, 4, 8).requires_grad_()
    found = square(EMPTY, x, kernel="fused")
    assert found.shape == (4, 0, 8)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(gradient, torch.zeros_like(x))


def test_threads_agree(threads: Any, derivatives: Any) -> None:
    """Atoms are independent, so the bits are the same."""
    x = random_features(NATURAL, 601, 32, dtype=torch.float32)
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(derivatives(lambda x: square_fused(NATURAL, x), x, order=2))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_wrong_shapes_are_named() -> None:
    x = random_features(SMALL, 3, 4)
    g = torch.zeros(3, SMALL.rows, 4, dtype=torch.float64)
    operators = torch.ops.bayrace
    with pytest.raises(ValueError, match=r"shape \(3, 3, 4\).* 0e\+1o>0e\+1o needs \(3, 4, 4\)"):
        square_fused(SMALL, x[:, 1:])
    with pytest.raises(ValueError, match=r"shape \(2, 4, 4\).* needs \(3, 4, 4\)"):
        operators.mixed(SMALL.key, x[1:], x)
    with pytest.raises(ValueError, match=r"shape \(3, 4, 4\).* needs \(3, 5, 4\)"):
        operators.transposed(SMALL.key, x, x)
    with pytest.raises(ValueError, match=r"torch\.float32: .* and torch\.float64"):
        operators.transposed(SMALL.key, g.float(), x)
    with pytest.raises(ValueError, match=r"shape \(4, 4\)"):
        square_fused(SMALL, x[0])


def test_environment_chooses(monkeypatch: pytest.MonkeyPatch, watch: Any) -> None:
    x = random_features(SMALL, 3, 4)
    for chosen, calls in (("plain", 0), ("auto", 1), ("fused", 1)):
        monkeypatch.setenv("BAYRACE_KERNEL", chosen)
        assert prepare(SMALL, 4, x.dtype) == ("fused" if calls else "plain")
        with watch() as watching:
            found = square(SMALL, x)
        assert watching.seen["square"] == calls
        torch.testing.assert_close(found, square_plain(SMALL, x))
    with pytest.raises(RuntimeError, match=r"float32 or float64, not torch\.float16"):
        square(SMALL, x.half(), kernel="fused")
    monkeypatch.setenv("BAYRACE_KERNEL", "fast")
    with pytest.raises(ValueError, match=r"BAYRACE_KERNEL='fast': choose one of"):
        square(SMALL, x)


def test_compile() -> None:
    x = random_features(SMALL, 3, 4).requires_grad_()

    def loss(x: Tensor) -> Tensor:
        force = grad(lambda x: square(SMALL, x, kernel="fused").sin().sum())(x)
        return force.square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    (found,) = torch.autograd.grad(compiled(x), x)
    (expected,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
