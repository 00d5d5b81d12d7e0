"""Muon and SOAP against known answers: singular values, Adam, and rotated coordinates."""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.train import muon, optim
from bayrace.train.adam import AdamSettings
from bayrace.train.matrices import parted, stacked
from bayrace.train.muon import MuonSettings, orthogonal
from bayrace.train.soap import EVERY, SoapSettings

ADAM = AdamSettings("adamw", lr=0.02, weight_decay=0.0, betas=(0.9, 0.99), eps=1e-10)
MUON, SOAP = MuonSettings(ADAM, momentum=0.9), SoapSettings(ADAM, memory=0.9)
FIXTURES = hypothesis.HealthCheck.function_scoped_fixture  # the environment is set anew
SHAPES = {"a": (12, 9), "b": (8, 20), "c": (3, 8, 8), "d": (9, 8, 10), "e": (12, 9), "f": (5,)}


def made(seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Params:
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(s, generator=generator, dtype=torch.float64) for k, s in shapes.items()}


def listed(params: Params) -> list[Tensor]:
    return [value.clone() for value in params.values()]


def with_singular_values(values: Tensor, rows: int, columns: int, *, seed: int) -> Tensor:
    parts = made(seed, {"left": (rows, len(values)), "right": (columns, len(values))})
    left, right = (torch.linalg.qr(part).Q for part in parts.values())
    return left @ torch.diag(values) @ right.mT


def test_matrices_are_found_by_shape_and_all_others_left_to_adam() -> None:
    shapes = {**SHAPES, "narrow": (64, 3), "number": ()}
    params = made(0, shapes)
    stacks, others = parted(params)
    assert stacks == {"12x9": ["a", "e"], "8x20": ["b"], "3x8x8": ["c"], "9x8x10": ["d"]}
    assert list(others) == ["f", "narrow", "number"]
    assert stacked(["a", "e"], params).shape == (2, 12, 9)
    assert stacked(["c"], params).shape == (3, 8, 8)  # three matrices
    assert stacked(["d"], params).shape == (1, 72, 10)  # one tall matrix


def test_polynomials_are_the_best_ones() -> None:
    low, high = 0.001, 1.0
    for found in muon._POLYNOMIALS:
        x = np.concatenate([np.linspace(low, high, 3000), np.geomspace(low, high, 1000)])
        odd, error = np.stack([x, x**3, x**5], axis=1), np.ones((len(x), 1))
        best = linprog(
            [0, 0, 0, 1],
            A_ub=np.block([[odd, -error], [-odd, -error]]),
            b_ub=np.concatenate([np.ones(len(x)), -np.ones(len(x))]),
            bounds=[(None, None)] * 3 + [(0, None)],
        ).x
        assert found == pytest.approx(best[:3], abs=2e-4)
        low, high = 1 - best[3], 1 + best[3]
    assert (low, high) == pytest.approx((0.887, 1.113), abs=0.001)


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (9, 40), (40, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orthogonal_keeps_directions_and_levels_singular_values(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    values = torch.logspace(0, -2, min(rows, columns), dtype=torch.float64)
    matrix = with_singular_values(values, rows, columns, seed=1).to(dtype)
    (result,) = orthogonal([1e-3 * matrix.unsqueeze(0)], scale=0.5)
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    levelled = left.mT @ result[0].double() @ right.mT / (0.5 * math.sqrt(max(rows, columns)))
    diagonal = levelled.diagonal()
    assert float(diagonal.min()) > 0.88
    assert float(diagonal.max()) < 1.12
    slack = 4 * torch.finfo(dtype).eps * 100**2  # Gram matrices square the condition number
    assert float((levelled - torch.diag(diagonal)).abs().max()) < slack


@pytest.fixture(params=["plain", "fused"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """PyTorch, and compiled code."""
    monkeypatch.setenv("BAYRACE_KERNEL", request.param)
    return str(request.param)


@pytest.mark.usefixtures("kernel")
def test_zero_gradients_move_nothing() -> None:
    for settings in (MUON, SOAP):
        params = made(2)
        before, state = listed(params), optim.init(settings, params)
        zeros = [torch.zeros_like(value) for value in before]
        optim.step(settings, params, zeros, state, lr=0.1)
        assert all(torch.equal(*pair) for pair in zip(params.values(), before, strict=True))


@pytest.mark.usefixtures("kernel")
def test_muon_steps_equal_those_by_singular_value_decomposition() -> None:
    """Up to the polynomials, which leave singular values of 0.89 to 1.11."""
    params, reference = made(3), made(3)
    state = optim.init(MUON, params)
    momentum = {name: torch.zeros_like(value) for name, value in reference.items()}
    for number in range(4):
        grads = made(10 + number)
        optim.step(MUON, params, listed(grads), state, lr=0.02)
        for name in ("a", "b", "e"):  # no tiny singular values, which the polynomials leave small
            momentum[name] = 0.9 * momentum[name] + 0.1 * grads[name]
            ahead = 0.1 * grads[name] + 0.9 * momentum[name]
            left, _, right = torch.linalg.svd(ahead, full_matrices=False)
            step = 0.02 * 0.2 * math.sqrt(max(ahead.shape[-2:])) * left @ right
            moved = reference[name] - params[name]
            assert float((moved - step).norm() / step.norm()) < 0.12
            reference[name] = params[name].clone()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("factor", [1e-14, 1e-6, 1e4, 1e12])
def test_muon_does_not_feel_the_scale_of_the_loss(factor: float) -> None:
    """In float32, whose range squares of squares leave quickly."""
    ends = []
    for scale in (1.0, factor):
        params = {name: value.float() for name, value in made(4).items()}
        state = optim.init(MUON, params)
        for number in range(5):
            grads = [(scale * value).float() for value in made(20 + number).values()]
            optim.step(MUON, params, grads, state, lr=0.02)
        ends.append(params)
    for name in ("a", "b", "c", "d", "e"):
        torch.testing.assert_close(ends[0][name], ends[1][name], rtol=1e-4, atol=1e-5)


@hypothesis.settings(deadline=None, max_examples=30, suppress_health_check=[FIXTURES])
@given(
    shape=st.lists(st.integers(8, 70), min_size=2, max_size=2),
    several=st.sampled_from([(), (3,), (9,)]),
    seed=st.integers(0, 10**6),
)
def test_compiled_steps_are_those_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, shape: list[int], several: tuple[int, ...], seed: int
) -> None:
    """Of any matrices; the polynomials amplify rounding where singular values are small."""
    settings = replace(MUON, adam=replace(ADAM, weight_decay=0.1))
    shapes = {"a": (*several, *shape), "b": (*several, *shape), "c": (40, 9)}
    ends = []
    for kernel in ("plain", "fused"):
        monkeypatch.setenv("BAYRACE_KERNEL", kernel)
        params = made(seed, shapes)
        state = optim.init(settings, params)
        for number in range(2):
            grads = listed(made(seed + 1 + number, shapes))
            grads[0] = grads[0].mT.contiguous().mT  # strides of another order
            optim.step(settings, params, grads, state, lr=1.0)
        ends.append([*params.values(), *(value for k, value in state.items() if "mom" in k)])
    for plain, fused in zip(*ends, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("rows", "columns"), [(8, 43), (32, 32), (70, 12), (64, 64), (100, 90)])
def test_compiled_steps_in_single_precision(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int
) -> None:
    """The polynomials amplify rounding; compiled code must not suffer twice as much as PyTorch."""
    values = torch.logspace(0, -2, min(rows, columns), dtype=torch.float64)
    errors = {"plain": 0.0, "fused": 0.0}
    for seed in range(12):
        gradient = with_singular_values(values, rows, columns, seed=seed).float()
        (exact,) = orthogonal([gradient.double().unsqueeze(0)], scale=0.2)
        for kernel in errors:
            monkeypatch.setenv("BAYRACE_KERNEL", kernel)
            params = {"a": torch.zeros(rows, columns)}
            optim.step(MUON, params, [gradient.clone()], optim.init(MUON, params), lr=1.0)
            error = float((params["a"] + exact[0]).norm() / exact.norm())
            assert error < 4 * torch.finfo(torch.float32).eps * 100**2
            errors[kernel] += error**2
    assert math.sqrt(errors["fused"]) < 2 * math.sqrt(errors["plain"])


def test_threads_do_not_change_a_bit() -> None:
    before, ends = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            params, state = made(7), optim.init(MUON, made(7))
            optim.step(MUON, params, listed(made(8)), state, lr=0.02)
            ends.append(listed(params))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


@pytest.mark.parametrize("settings", [MUON, SOAP])
def test_what_is_no_matrix_moves_as_adam_moves_it(settings: optim.Optimiser) -> None:
    params, alone = made(5), {"f": made(5)["f"]}
    state, other = optim.init(settings, params), optim.init(ADAM, alone)
    for number in range(5):
        grads = made(30 + number)
        optim.step(settings, params, listed(grads), state, lr=0.02)
        optim.step(ADAM, alone, [grads["f"]], other, lr=0.02)
    assert torch.equal(params["f"], alone["f"])


@pytest.mark.parametrize("settings", [MUON, SOAP])
def test_the_order_of_the_parameters_does_not_matter(settings: optim.Optimiser) -> None:
    """A file may give them in another one, between two steps as well."""
    params, turned = made(7), dict(reversed(made(7).items()))
    state, other = optim.init(settings, params), optim.init(settings, turned)
    for number in range(4):
        grads = made(70 + number)
        optim.step(settings, params, listed(grads), state, lr=0.02)
        optim.step(settings, turned, [grads[name].clone() for name in turned], other, lr=0.02)
        turned = dict(sorted(turned.items(), key=lambda item: hash((item[0], number))))
    assert all(torch.equal(params[name], turned[name]) for name in params)


@pytest.mark.parametrize("settings", [MUON, SOAP])
def test_weights_decay_apart_from_the_gradient(settings: MuonSettings | SoapSettings) -> None:
    decaying = type(settings)(AdamSettings("adamw", 0.02, 0.5, (0.9, 0.99), 1e-10), 0.9)
    params, plain, before, grads = made(6), made(6), made(6), made(40)
    for chosen, moved in ((settings, plain), (decaying, params)):
        state = optim.init(chosen, moved)
        for rate in (0.0, 0.02):  # SOAP moves from its second step on
            optim.step(chosen, moved, listed(grads), state, lr=rate)
    for name, value in before.items():
        torch.testing.assert_close(params[name], plain[name] - 0.02 * 0.5 * value)


def test_soap_is_adam_in_its_bases() -> None:
    """Rotated gradients move rotated weights: the path does not depend on the coordinates."""
    shape = {"a": (8, 8)}
    start, turns = made(7, shape), made(8, {"left": (8, 8), "right": (8, 8)})
    left, right = (torch.linalg.qr(part).Q for part in turns.values())
    straight, turned = {"a": start["a"].clone()}, {"a": left @ start["a"] @ right}
    states = [optim.init(SOAP, straight), optim.init(SOAP, turned)]
    for number in range(2 * EVERY + 5):
        grad = made(50 + number, shape)["a"]
        optim.step(SOAP, straight, [grad], states[0], lr=0.02)
        optim.step(SOAP, turned, [left @ grad @ right], states[1], lr=0.02)
    torch.testing.assert_close(left @ straight["a"] @ right, turned["a"], rtol=1e-6, atol=1e-8)


def test_soap_steps_equal_adam_where_the_covariances_are_diagonal() -> None:
    """Gradients with one entry per row and column, at fixed places, have the unit bases."""
    params, peer = made(9, {"a": (8, 8)}), made(9, {"a": (8, 8)})
    state, other = optim.init(SOAP, params), optim.init(ADAM, peer)
    for number in range(EVERY - 1):
        entries = made(60 + number, {"d": (8,)})["d"] + torch.arange(1.0, 9.0)
        optim.step(SOAP, params, [torch.diag(entries)], state, lr=0.02)
        if number:  # the first gradient of SOAP makes its bases only
            optim.step(ADAM, peer, [torch.diag(entries)], other, lr=0.02)
    torch.testing.assert_close(params["a"], peer["a"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("settings", [MUON, SOAP])
def test_badly_scaled_regression_is_solved(settings: optim.Optimiser) -> None:
    """Where the inputs have very different sizes, in no direction of the axes, Adam is slow."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(16, 16, generator=generator, dtype=torch.float64)).Q
    inputs = torch.randn(400, 16, generator=generator, dtype=torch.float64)
    inputs = inputs * torch.logspace(0, -2, 16, dtype=torch.float64) @ turn
    truth = torch.randn(16, 12, generator=generator, dtype=torch.float64)
    errors = {}
    for name, chosen in (("adam", ADAM), ("ours", settings)):
        params = {"w": torch.zeros(16, 12, dtype=torch.float64)}
        state = optim.init(chosen, params)
        for number in range(600):
            grad = inputs.mT @ (inputs @ (params["w"] - truth)) / 400
            rate = 0.1 * 0.5 * (1 + math.cos(math.pi * number / 600))
            optim.step(chosen, params, [grad], state, lr=rate)
        errors[name] = float((params["w"] - truth).norm())
    assert errors["ours"] < 0.6 * errors["adam"]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum=1.0: must be in \[0, 1\)"):
        MuonSettings(ADAM, momentum=1.0)
    with pytest.raises(ValueError, match=r"memory=-0.1"):
        SoapSettings(ADAM, memory=-0.1)


@pytest.mark.parametrize("settings", [ADAM, MUON, SOAP])
def test_another_rate_changes_nothing_else(settings: optim.Optimiser) -> None:
    assert optim.with_rate(settings, 0.5).lr == 0.5
    assert optim.with_rate(optim.with_rate(settings, 0.5), settings.lr) == settings


def test_another_rate_holds_for_any_length() -> None:
    usual = replace(MUON, usual_steps=100)
    assert optim.peak_rate(usual, steps=400) == pytest.approx(MUON.lr / 2)
    assert optim.peak_rate(optim.with_rate(usual, 0.5), steps=400) == 0.5
