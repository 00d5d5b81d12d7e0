"""The compiled linear maps equal the plain ones: values, all derivatives, every transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, jacrev, vmap

from bayrace.nn.kernels import kernel_status
from bayrace.nn.mixing import Block, Mixing, mix, mix_plain, parse_mixing

pytestmark = pytest.mark.skipif(kernel_status().startswith("plain"), reason="no C compiler")

MIXING = Mixing((Block(1, 8, 4, 0.5), Block(3, 4, 12, 0.25), Block(5, 0, 4, 1.0)))
COUNTS = (2, 0, 3)


def fused(mixing: Mixing, x: Tensor, w: Tensor, counts: tuple[int, ...]) -> Tensor:
    """The operator itself, so that no test can pass by falling back."""
    result: Tensor = torch.ops.bayrace.mix(mixing.key, x, w, counts, False)
    return result


def random_inputs(
    mixing: Mixing, counts: tuple[int, ...], *, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """x and w."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (sum(counts), mixing.before), (len(counts), mixing.weights)
    x, w = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return x, w


CHANNELS = st.sampled_from((0, 4, 8, 12, 16, 32, 36))
BLOCKS = st.builds(Block, st.integers(1, 5), CHANNELS, CHANNELS, st.floats(0.1, 2))


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.lists(BLOCKS, min_size=1, max_size=4),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values_and_derivatives(
    blocks: list[Block],
    counts: list[int],
    double: bool,
    seed: int,
    derivatives: Any,
    assert_same: Any,
) -> None:
    mixing, kinds = Mixing(tuple(blocks)), tuple(counts)
    assume(mixing.divisor)
    dtype, tolerance = (torch.float64, 1e-12) if double else (torch.float32, 1e-5)
    values = random_inputs(mixing, kinds, dtype=dtype, seed=seed)
    ours = derivatives(lambda x, w: fused(mixing, x, w, kinds), *values, order=2)
    reference = derivatives(lambda x, w: mix_plain(mixing, x, w, kinds), *values, order=2)
    assert_same(ours, reference, tolerance)


def test_known_answer() -> None:
    """Each component by its own matrix, by hand."""
    mixing = Mixing((Block(2, 2, 2, 3.0),))
    x = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.float64)
    w = torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.float64)
    expected = torch.tensor([[3.0, 6, 9, 12], [18, 15, 24, 21]], dtype=torch.float64)
    for kernel in ("fused", "plain"):
        assert torch.equal(mix(mixing, x, w, (1, 1), kernel=kernel), expected)


def test_third_derivatives(derivatives: Any, assert_same: Any) -> None:
    values = random_inputs(MIXING, COUNTS)

    def cubic(function: Any) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, w: function(MIXING, x, w, COUNTS).sin()

    ours = derivatives(cubic(fused), *values, order=3)
    assert_same(ours, derivatives(cubic(mix_plain), *values, order=3), 1e-12)


def test_gradcheck() -> None:
    mixing, counts = Mixing((Block(1, 2, 4, 0.5), Block(3, 2, 2, 2.0))), (1, 2)
    inputs = tuple(value.requires_grad_() for value in random_inputs(mixing, counts))

    def function(x: Tensor, w: Tensor) -> Tensor:
        return fused(mixing, x, w, counts)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_strided_inputs() -> None:
    x, w = random_inputs(MIXING, COUNTS)
    strided = (x.mT.contiguous().mT, w.mT.contiguous().mT)
    torch.testing.assert_close(
        fused(MIXING, *strided, COUNTS), mix_plain(MIXING, x, w, COUNTS), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 0)])
def test_functional_transforms(dims: tuple[int | None, int | None], assert_same: Any) -> None:
    """Members with their own features, weights or both, and gradients of each."""
    members = [random_inputs(MIXING, COUNTS, seed=seed) for seed in range(3)]
    stacked = [
        values[0] if dim is None else torch.stack(values, dim)
        for values, dim in zip(zip(*members, strict=True), dims, strict=True)
    ]

    def everything(function: Any) -> list[Tensor]:
        def energy(x: Tensor, w: Tensor) -> Tensor:
            return function(MIXING, x, w, COUNTS).sin().sum()

        def loss(x: Tensor, w: Tensor) -> Tensor:
            return grad(energy)(x, w).square().sum()

        return [
            vmap(energy, in_dims=dims)(*stacked),
            *vmap(grad(energy, argnums=(0, 1)), in_dims=dims)(*stacked),
            *vmap(grad(loss, argnums=(0, 1)), in_dims=dims)(*stacked),
            jacrev(lambda w: grad(energy)(members[0][0], w))(members[0][1]),
        ]

    assert_same(everything(fused), everything(mix_plain), 1e-12)


def test_threads_agree(threads: Any, derivatives: Any, assert_same: Any) -> None:
    """Enough work for two threads, in whole chunks and with a rest."""
    mixing, counts = Mixing((Block(1, 32, 64, 1.0), Block(3, 64, 36, 0.5))), (150, 3, 0, 144)
    values = random_inputs(mixing, counts, dtype=torch.float32)
    found = []
    for count in (1, 2, 2):
        with threads(count):
            found.append(derivatives(lambda x, w: fused(mixing, x, w, counts), *values, order=2))
    assert all(torch.equal(a, b) for a, b in zip(found[0][:2], found[1][:2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found[1], found[2], strict=True))
    assert_same(found[0], found[1], 1e-5)


def test_wrong_shapes_are_named() -> None:
    x, w = random_inputs(MIXING, COUNTS)
    with pytest.raises(ValueError, match=r"features of shape \(4, 20\).* needs \(5, 20\)"):
        fused(MIXING, x[1:], w, COUNTS)
    with pytest.raises(ValueError, match=r"weights of shape \(2, 80\).* needs \(3, 80\)"):
        fused(MIXING, x, w[1:], COUNTS)
    with pytest.raises(ValueError, match=r"weights .*torch.float32: .*torch.float64"):
        fused(MIXING, x, w.float(), COUNTS)
    with pytest.raises(ValueError, match=r"gradient of shape \(5, 20\).* needs \(5, 60\)"):
        torch.ops.bayrace.mix_outer(MIXING.key, x, x, COUNTS)


def test_channels_that_do_not_fill_vectors() -> None:
    """The seam takes the plain way; the operator refuses, for it would write past the end."""
    mixing = Mixing((Block(3, 4, 5, 0.5), Block(1, 1, 4, 1.0)))
    x, w = random_inputs(mixing, (3,))
    expected = mix_plain(mixing, x, w, (3,))
    assert torch.equal(mix(mixing, x, w, (3,), kernel="fused"), expected)
    with pytest.raises(ValueError, match="multiples of 2"):
        fused(mixing, x, w, (3,))
    pairs = Mixing((Block(1, 2, 6, 1.0),))  # enough for float64 only
    x, w = random_inputs(pairs, (3,))
    torch.testing.assert_close(fused(pairs, x, w, (3,)), mix_plain(pairs, x, w, (3,)))
    with pytest.raises(ValueError, match="multiples of 4"):
        fused(pairs, x.float(), w.float(), (3,))


def test_environment_chooses(monkeypatch: pytest.MonkeyPatch, watch: Any) -> None:
    x, w = random_inputs(MIXING, COUNTS)
    for chosen, calls in (("plain", 0), ("auto", 1), ("fused", 1)):
        monkeypatch.setenv("BAYRACE_KERNEL", chosen)
        with watch() as watching:
            found = mix(MIXING, x, w, COUNTS)
        assert watching.seen["mix"] == calls
        torch.testing.assert_close(found, mix_plain(MIXING, x, w, COUNTS))


def test_other_dtypes() -> None:
    mixing = Mixing((Block(1, 8, 8, 1.0),))
    x, w = (value.half() for value in random_inputs(mixing, (3,)))
    assert torch.equal(mix(mixing, x, w, (3,)), mix_plain(mixing, x, w, (3,)))
    with pytest.raises(RuntimeError, match=r"float32 or float64, not torch\.float16"):
        mix(mixing, x, w, (3,), kernel="fused")


@given(blocks=st.lists(BLOCKS, min_size=1, max_size=4))
def test_key_is_the_mixing(blocks: list[Block]) -> None:
    mixing = Mixing(tuple(blocks))
    assert parse_mixing(mixing.key) == mixing


def test_compile() -> None:
    x, w = (value.requires_grad_() for value in random_inputs(MIXING, COUNTS))

    def loss(x: Tensor, w: Tensor) -> Tensor:
        force = grad(lambda x: mix(MIXING, x, w, COUNTS, kernel="fused").sin().sum())(x)
        return force.square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(x, w), (x, w))
    for one, other in zip(found, torch.autograd.grad(loss(x, w), (x, w)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
