"""Radial splines: compiled equals plain, and both are the curve that they promise."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, jacrev, vmap

from bayrace.nn.kernels import Kernel, kernel_status
from bayrace.nn.splines import coefficients, spline

needs_compiler = pytest.mark.skipif(kernel_status().startswith("plain"), reason="no C compiler")
KERNELS = ("plain", pytest.param("fused", marks=needs_compiler))
SPACING = 0.25  # a power of two: both kernels find the same interval, also at a knot
INTERVALS, WIDTH, PAIRS = 6, 3, 5
ZERO = torch.zeros((), dtype=torch.float64)


def both(intervals: int, base: Tensor | None = None, *, spacing: float = SPACING) -> list[Any]:
    """The two kernels as functions of a table and distances."""

    def read(kernel: Kernel) -> Any:
        return lambda table, d: spline(
            table, d, intervals=intervals, cutoff=intervals * spacing, base=base, kernel=kernel
        )

    return [read("fused"), read("plain")]


def random_inputs(
    intervals: int,
    width: int,
    pairs: int,
    *,
    sets: int = 1,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """A table, and distances inside that stay a tenth of an interval away from all knots."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(sets * (intervals + 3), width, generator=generator, dtype=dtype)
    knot = torch.randint(intervals, (pairs,), generator=generator)
    inside = 0.1 + 0.8 * torch.rand(pairs, generator=generator, dtype=dtype)
    return table, (knot + inside) * SPACING


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    intervals=st.integers(1, 16),
    width=st.sampled_from((1, 3, 8, 9, 17)),
    between=st.integers(0, 5),
    knots=st.lists(st.integers(0, 40), max_size=4),
    sets=st.integers(0, 3),
    double=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values_and_derivatives(
    intervals: int,
    width: int,
    between: int,
    knots: list[int],
    sets: int,
    double: bool,
    seed: int,
    derivatives: Any,
    assert_same: Any,
) -> None:
    """Between knots, at knots, at the cutoff and beyond; one set for all, or one of several."""
    dtype, tolerance = (torch.float64, 1e-12) if double else (torch.float32, 1e-5)
    # float32 has no digits to spare for terms that are multiplied by 1 / spacing² and then cancel
    spacing = SPACING if double else 1.0
    table, d = random_inputs(intervals, width, between, sets=max(1, sets), dtype=dtype, seed=seed)
    exact = torch.tensor([*knots, intervals, 1000 * intervals], dtype=dtype) * spacing
    d = d * (spacing / SPACING)
    d = torch.cat((d, exact)) if knots else d  # so there may be no pairs at all
    base = None
    if sets:
        kind = torch.randint(sets, d.shape, generator=torch.Generator().manual_seed(seed))
        base = kind * (intervals + 3)
    ours, reference = (
        derivatives(function, table, d, order=2)
        for function in both(intervals, base, spacing=spacing)
    )
    assert_same(ours, reference, tolerance)


@needs_compiler
def test_third_derivatives(derivatives: Any, assert_same: Any) -> None:
    table, d = random_inputs(INTERVALS, WIDTH, PAIRS)
    ours, reference = (
        derivatives(lambda table, d, f=function: f(table, d).sin(), table, d, order=3)
        for function in both(INTERVALS)
    )
    assert_same(ours, reference, 1e-12)


@needs_compiler
def test_fourth_derivatives_vanish() -> None:
    """A cubic has none, and the family says so instead of repeating the third."""
    table, d = random_inputs(INTERVALS, WIDTH, PAIRS)
    d.requires_grad_()
    value = both(INTERVALS)[0](table, d).sum()
    for order in range(1, 5):
        (slope,) = torch.autograd.grad(value, d, create_graph=True)
        value = slope.sum()
        assert bool(slope.any()) == (order < 4)


@needs_compiler
@pytest.mark.parametrize("base", [None, torch.tensor([9, 0, 9, 9, 0])])
def test_gradcheck(base: Tensor | None) -> None:
    table, d = (value.requires_grad_() for value in random_inputs(INTERVALS, WIDTH, PAIRS, sets=2))
    g = torch.randn(PAIRS, WIDTH, dtype=torch.float64).requires_grad_()
    operators, place = torch.ops.bayrace, (base, INTERVALS, SPACING)
    for function, inputs in (
        (lambda table, d: operators.spline(table, d, *place, 0), (table, d)),
        (lambda table, g, d: operators.spline_slope(table, g, d, *place, 0), (table, g, d)),
        (lambda g, d: operators.spline_adjoint(g, d, *place, 0, 18), (g, d)),
    ):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


@needs_compiler
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 1)])
@pytest.mark.parametrize("sets", [1, 2])
def test_functional_transforms(
    dims: tuple[int | None, int | None], sets: int, assert_same: Any
) -> None:
    """Members with their own tables, distances or both, and gradients of each."""
    base = torch.tensor([0, 9, 9, 0, 9]) if sets > 1 else None
    members = [random_inputs(INTERVALS, WIDTH, PAIRS, sets=sets, seed=seed) for seed in range(3)]
    stacked = [
        values[0] if dim is None else torch.stack(values, dim)
        for values, dim in zip(zip(*members, strict=True), dims, strict=True)
    ]

    def everything(function: Any) -> list[Tensor]:
        def energy(table: Tensor, d: Tensor) -> Tensor:
            return function(table, d).sin().sum()

        def loss(table: Tensor, d: Tensor) -> Tensor:
            return grad(energy, argnums=1)(table, d).square().sum()

        return [
            vmap(energy, in_dims=dims)(*stacked),
            *vmap(grad(energy, argnums=(0, 1)), in_dims=dims)(*stacked),
            *vmap(grad(loss, argnums=(0, 1)), in_dims=dims)(*stacked),
            jacrev(lambda table: grad(energy, argnums=1)(table, members[0][1]))(members[0][0]),
        ]

    assert_same(*map(everything, both(INTERVALS, base)), 1e-12)


@needs_compiler
def test_members_with_their_own_sets(assert_same: Any) -> None:
    """First rows that differ between members."""
    table, d = random_inputs(INTERVALS, WIDTH, PAIRS, sets=2)
    bases = 9 * torch.tensor([[0, 1, 0, 1, 1], [1, 1, 0, 0, 0]])
    ours = vmap(lambda base: both(INTERVALS, base)[0](table, d))(bases)
    expected = torch.stack([both(INTERVALS, base)[1](table, d) for base in bases])
    assert_same([ours], [expected], 1e-12)


@needs_compiler
def test_threads_agree(threads: Any, derivatives: Any, assert_same: Any) -> None:
    """Sums over pairs are taken in parts, so they agree to rounding and repeat exactly."""
    table, d = random_inputs(16, 120, 1801, dtype=torch.float32)
    found = []
    for count in (1, 2, 2):
        with threads(count):
            found.append(derivatives(both(16)[0], table, d, order=2))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(a, b) for a, b in zip(found[1], found[2], strict=True))
    assert_same(found[0], found[1], 1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("intervals", "cutoff"), [(4, 5.0), (9, 3.7), (32, 6.0)])
def test_knots_are_met(kernel: Kernel, intervals: int, cutoff: float) -> None:
    """Exactly, but for the last three, which read coefficients that were set to 0."""
    generator = torch.Generator().manual_seed(intervals)
    values = torch.randn(intervals + 1, 2, generator=generator, dtype=torch.float64)
    table = coefficients(intervals, values) @ values
    assert torch.equal(table[-3:], torch.zeros_like(table[-3:]))
    knots = torch.linspace(0, cutoff, intervals + 1, dtype=torch.float64)
    found = spline(table, knots, intervals=intervals, cutoff=cutoff, kernel=kernel)
    torch.testing.assert_close(found[:-3], values[:-3], rtol=0, atol=1e-12)
    # coefficients are at most 3 times the data, 3 being the norm of the inverse of [1 4 1] / 6,
    # and the weights of those that were dropped sum to 1 or less
    error = (found - values)[-3:].abs().amax(1)
    assert (error <= 3 * values.abs().max()).all()
    assert (found[-1].abs() < 1e-30).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("power", "order"), [(4, 4), (3, 4), (2, 2)])
def test_convergence(kernel: Kernel, power: int, order: int) -> None:
    """Error ~ h⁴, also at an end like (1 - x)³; what ends with fewer derivatives pays for it."""
    cutoff = 5.0

    def curve(d: Tensor) -> Tensor:
        x = d / cutoff
        return torch.where(x < 1, torch.cos(4 * x) * (1 - x * x) ** power, 0).unsqueeze(-1)

    points = torch.linspace(0, 1.1 * cutoff, 4001, dtype=torch.float64)
    errors, inner = [], []
    for intervals in (16, 32, 64, 128):
        values = curve(torch.linspace(0, cutoff, intervals + 1, dtype=torch.float64))
        table = coefficients(intervals, values) @ values
        found = spline(table, points, intervals=intervals, cutoff=cutoff, kernel=kernel)
        error = (found - curve(points)).abs().squeeze(-1)
        errors.append(error.max().item())
        inner.append(error[points < cutoff / 2].max().item())
    rates = [math.log2(a / b) for a, b in pairwise(errors)]
    inside = [math.log2(a / b) for a, b in pairwise(inner)]
    assert rates[-1] == pytest.approx(order, abs=0.25), rates
    assert inside[-1] == pytest.approx(4, abs=0.25), inside
    assert inner[-1] < 1e-6


def jets(table: Tensor, d: Tensor, intervals: int, cutoff: float, kernel: Kernel) -> list[Tensor]:
    """The first function of a table and its first two derivatives at every distance."""
    d = d.clone().requires_grad_()
    found = [spline(table, d, intervals=intervals, cutoff=cutoff, kernel=kernel)[:, 0]]
    for _ in range(2):
        found += torch.autograd.grad(found[-1].sum(), d, create_graph=True)
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_cubic_goes_on_below_the_first_interval(kernel: Kernel) -> None:
    """And nothing else changes: above it the spline is the one that meets all knots."""
    intervals, cutoff, first = 9, 4.5, 3
    values = torch.randn(10, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    whole = coefficients(intervals, values) @ values
    table = coefficients(intervals, values, first=first) @ values
    assert torch.equal(table[first:], whole[first:])
    start = first * cutoff / intervals
    inside = torch.linspace(start, start + 0.49, 4, dtype=torch.float64)
    points = torch.linspace(0.1, start, 20, dtype=torch.float64)
    known = jets(table, inside, intervals, cutoff, kernel)[0].detach().numpy()
    cubic = np.polynomial.Polynomial.fit(inside.numpy(), known, deg=3)
    found = jets(table, points, intervals, cutoff, kernel)[0].detach().numpy()
    np.testing.assert_allclose(found, cubic(points.numpy()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_two_continuous_derivatives(kernel: Kernel) -> None:
    """Across every knot and across the cutoff: the jump shrinks with the step."""
    intervals, cutoff = 7, 5.0
    values = torch.randn(8, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    table = coefficients(intervals, values) @ values
    knots = torch.arange(1, intervals + 1, dtype=torch.float64) * (cutoff / intervals)
    steep = (table.abs().max() * 8 * (intervals / cutoff) ** 3).item()  # of the second derivative
    for step in (1e-3, 1e-6):
        left = jets(table, knots - step, intervals, cutoff, kernel)
        right = jets(table, knots + step, intervals, cutoff, kernel)
        for below, above in zip(left, right, strict=True):
            torch.testing.assert_close(below, above, rtol=0, atol=2 * steep * step)
    ended = jets(table, torch.tensor([cutoff, cutoff + 1e-9, 9.0]).double(), 7, cutoff, kernel)
    assert not any(value.any() for value in ended)
    before = jets(table, torch.tensor([cutoff - 1e-5]).double(), 7, cutoff, kernel)
    for order, value in enumerate(before):  # c s³ / 6 and its derivatives
        assert 0 < abs(value.item()) < steep * 1e-5 ** (3 - order)


@pytest.mark.parametrize("kernel", KERNELS)
def test_even_at_zero(kernel: Kernel) -> None:
    """No slope at 0, so that the function of a vector is smooth at its origin."""
    values = torch.randn(9, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    table = coefficients(8, values) @ values
    torch.testing.assert_close(table[0], table[2], rtol=0, atol=1e-12)
    value, slope, _ = jets(table, torch.zeros(1).double(), 8, 4.0, kernel)
    torch.testing.assert_close(value[0], values[0, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(slope[0], ZERO, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_known_answer(kernel: Kernel) -> None:
    """One coefficient is the cubic B-spline: 1/6, 4/6, 1/6 at knots, 23/48 halfway."""
    table = torch.zeros(7, 1, dtype=torch.float64)
    table[3] = 1
    d = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 3.5], dtype=torch.float64)
    found = spline(table, d, intervals=4, cutoff=4.0, kernel=kernel)
    expected = torch.tensor([0, 1 / 48, 1 / 6, 23 / 48, 4 / 6, 1 / 6, 1 / 48]).double()
    torch.testing.assert_close(found[:, 0], expected, rtol=1e-7, atol=0)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_beyond_all_bounds(dtype: torch.dtype) -> None:
    """No whole number holds their interval; reading there would be a crash."""
    table = torch.ones(INTERVALS + 3, 2, dtype=dtype)
    d = torch.tensor([1e30, math.inf], dtype=dtype).requires_grad_()
    found = both(INTERVALS)[0](table, d)
    assert torch.equal(found, torch.zeros_like(found))
    assert torch.equal(torch.autograd.grad(found.sum(), d)[0], torch.zeros_like(d))


@needs_compiler
def test_wrong_shapes_are_named() -> None:
    table, d = random_inputs(INTERVALS, WIDTH, PAIRS)
    operators, place = torch.ops.bayrace, (None, INTERVALS, SPACING, 0)
    with pytest.raises(ValueError, match=r"table of 8 rows: rows 0 to 8 are read"):
        both(INTERVALS)[0](table[1:], d)
    with pytest.raises(ValueError, match=r"table of 9 rows: rows 0 to 9 are read"):
        both(INTERVALS, torch.tensor([0, 1, 0, 0, 0]))[0](table, d)
    with pytest.raises(ValueError, match=r"table of 9 rows: rows -1 to 8 are read"):
        both(INTERVALS, torch.tensor([0, -1, 0, 0, 0]))[0](table, d)
    with pytest.raises(ValueError, match=r"first rows \(4,\) of torch.int64: 5 distances"):
        both(INTERVALS, torch.zeros(4, dtype=torch.int64))[0](table, d)
    with pytest.raises(ValueError, match=r"first rows \(5,\) of torch.int32.*torch.int64"):
        both(INTERVALS, torch.zeros(5, dtype=torch.int32))[0](table, d)
    with pytest.raises(ValueError, match=r"distances \(5,\) of torch.float32.*torch.float64"):
        both(INTERVALS)[0](table, d.float())
    with pytest.raises(ValueError, match=r"distances \(5, 1\)"):
        both(INTERVALS)[0](table, d.unsqueeze(1))
    with pytest.raises(ValueError, match=r"gradient of shape \(4, 3\)"):
        operators.spline_slope(table, torch.zeros(4, 3).double(), d, *place)
    with pytest.raises(ValueError, match=r"gradient of shape \(4, 3\)"):
        operators.spline_adjoint(torch.zeros(4, 3).double(), d, *place, 9)


@needs_compiler
def test_environment_chooses(monkeypatch: pytest.MonkeyPatch, watch: Any) -> None:
    table, d = random_inputs(INTERVALS, WIDTH, PAIRS)
    for chosen, calls in (("plain", 0), ("auto", 1), ("fused", 1)):
        monkeypatch.setenv("BAYRACE_KERNEL", chosen)
        with watch() as watching:
            found = spline(table, d, intervals=INTERVALS, cutoff=INTERVALS * SPACING)
        assert watching.seen["spline"] == calls
        torch.testing.assert_close(found, both(INTERVALS)[1](table, d))


@needs_compiler
def test_compile() -> None:
    table, d = (value.requires_grad_() for value in random_inputs(INTERVALS, WIDTH, PAIRS))
    read = both(INTERVALS)[0]

    def loss(table: Tensor, d: Tensor) -> Tensor:
        return grad(lambda d: read(table, d).sin().sum())(d).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(table, d), (table, d))
    for one, other in zip(found, torch.autograd.grad(loss(table, d), (table, d)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
