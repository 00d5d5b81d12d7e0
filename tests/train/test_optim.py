from __future__ import annotations

import math

import pytest
import torch

from bayrace.core.outputs import Params
from bayrace.train import optim
from bayrace.train.adam import AdamSettings


def settings(name: str = "amsgrad", **changes: object) -> AdamSettings:
    values = {"lr": 0.01, "weight_decay": 0.03, "betas": (0.9, 0.99), "eps": 1e-8} | changes
    return AdamSettings(name=name, **values)


def made(seed: int) -> Params:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (3, 4), "b": (5,), "c": ()}
    return {k: torch.randn(s, generator=generator, dtype=torch.float64) for k, s in shapes.items()}


def gradients(params: Params, step: int) -> list[torch.Tensor]:
    """Of a quartic, with a factor that makes the largest second moment lie in the past."""
    return [value**3 * 4 * (1 + math.cos(step)) for value in params.values()]


@pytest.mark.parametrize("name", ["amsgrad", "adamw"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.03])
def test_steps_equal_torch(name: str, weight_decay: float) -> None:
    chosen = settings(name, weight_decay=weight_decay)
    params = made(0)
    state = optim.init(chosen, params)
    peers = [value.clone().requires_grad_(True) for value in params.values()]
    options = {"betas": chosen.betas, "eps": chosen.eps, "weight_decay": weight_decay}
    peer = (
        torch.optim.Adam(peers, lr=chosen.lr, amsgrad=True, **options)
        if name == "amsgrad"
        else torch.optim.AdamW(peers, lr=chosen.lr, **options)
    )
    for number in range(50):
        rate = chosen.lr / (1 + number)
        for group in peer.param_groups:
            group["lr"] = rate
        for value, gradient in zip(peers, gradients(params, number), strict=True):
            value.grad = gradient.clone()
        peer.step()
        optim.step(chosen, params, gradients(params, number), state, lr=rate)
    for value, expected in zip(params.values(), peers, strict=True):
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)


def test_state_is_tensors_and_survives_a_copy() -> None:
    chosen = settings()
    params = made(1)
    state = optim.init(chosen, params)
    optim.step(chosen, params, gradients(params, 0), state, lr=0.01)
    other, copied = ({k: v.clone() for k, v in group.items()} for group in (params, state))
    for number in range(3):
        optim.step(chosen, params, gradients(params, number), state, lr=0.01)
        optim.step(chosen, other, gradients(other, number), copied, lr=0.01)
    assert int(state["count"]) == 4
    assert all(torch.equal(params[name], other[name]) for name in params)


def test_clipping_limits_the_norm_and_returns_the_old_one() -> None:
    grads = [torch.tensor([3.0, 0.0], dtype=torch.float64), torch.tensor(4.0, dtype=torch.float64)]
    assert float(optim.clip(grads, maximum=1.0)) == 5.0
    assert float(optim.global_norm(grads)) == pytest.approx(1.0, abs=1e-6)
    before = [value.clone() for value in grads]
    assert float(optim.clip(grads, maximum=2.0)) == pytest.approx(1.0, abs=1e-6)
    assert all(torch.equal(*pair) for pair in zip(grads, before, strict=True))


def test_norm_shows_what_is_not_finite() -> None:
    assert math.isnan(float(optim.global_norm([torch.ones(2), torch.tensor(math.nan)])))


def test_average_starts_warm_and_ends_at_its_decay() -> None:
    average = {"a": torch.zeros(2, dtype=torch.float64)}
    params = {"a": torch.ones(2, dtype=torch.float64)}
    expected = 0.0
    for count in range(2000):
        decay = min(0.99, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay)
        optim.update_average(average, params, decay=0.99, count=count)
    assert float(average["a"][0]) == pytest.approx(expected, rel=1e-12)
    optim.update_average(average, {"a": torch.zeros(2).double()}, decay=0.99, count=5000)
    assert float(average["a"][1]) == pytest.approx(0.99 * expected, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0}, "lr=0.0: the learning rate must be positive"),
        ({"betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\)"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"name": "sgd"}, "'sgd' is unknown; use 'amsgrad' or 'adamw'"),
    ],
)
def test_settings_refuse_nonsense(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**change)
