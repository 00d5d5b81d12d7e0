"""Gradients that nobody asks for are not computed, and those that are asked for are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from bayrace.models.derivatives import evaluate
from bayrace.models.race.network import Race
from bayrace.nn.irreps import Irrep
from bayrace.nn.kernels import Kernel, kernel_status
from bayrace.nn.mixing import Block, Mixing, mix
from bayrace.nn.products import SelfProduct, square
from bayrace.nn.splines import spline
from bayrace.testing import graph_of, random_frame, small_spec

pytestmark = pytest.mark.skipif(kernel_status().startswith("plain"), reason="no C compiler")

MIXING = Mixing((Block(1, 4, 8, 0.5), Block(3, 4, 4, 0.25)))
PRODUCT = SelfProduct((Irrep(0, 1), Irrep(1, -1)), (Irrep(0, 1),))
ATOMS, KINDS = 5, (2, 3)
Weights = dict[str, Tensor]


def start() -> tuple[Weights, Tensor]:
    """Weights, and one number per atom that stands for its position."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"first": (2, MIXING.weights), "second": (2, MIXING.weights), "table": (9, 16)}
    weights = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    return weights, 0.2 + torch.rand(ATOMS, generator=generator, dtype=torch.float64)


def energy(weights: Weights, position: Tensor, kernel: Kernel = "fused") -> Tensor:
    """Leaf weights go straight into the operators; features depend on positions and weights."""
    x = spline(weights["table"], position, intervals=6, cutoff=1.5, kernel=kernel)
    hidden = mix(MIXING, x, weights["first"], KINDS, kernel=kernel)[:, :16].tanh()
    coupled = square(PRODUCT, hidden.reshape(ATOMS, 4, 4), kernel=kernel).flatten(1)
    hidden = hidden * coupled.sum(1, keepdim=True)
    return mix(MIXING, hidden, weights["second"], KINDS, kernel=kernel).sin().sum()


def leaves() -> tuple[Weights, Tensor]:
    weights, position = start()
    return {k: v.requires_grad_() for k, v in weights.items()}, position.requires_grad_()


def expected() -> dict[str, Tensor]:
    """Gradients of the energy in plain PyTorch."""
    weights, position = leaves()
    inputs = {**weights, "position": position}
    gradients = torch.autograd.grad(energy(weights, position, "plain"), list(inputs.values()))
    return dict(zip(inputs, gradients, strict=True))


def close(found: Tensor | None, wanted: Tensor) -> None:
    assert found is not None
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_forces_alone(watch: Any) -> None:
    """Every operator runs backward once, towards the positions only."""
    weights, position = leaves()
    total = energy(weights, position)
    with watch() as watching:
        (force,) = torch.autograd.grad(total, position)
    assert watching.seen == {"mix": 2, "transposed": 1, "spline_slope": 1}
    close(force, expected()["position"])


def test_weights_alone(watch: Any) -> None:
    """Nobody asks for positions: no slope, and nothing below the first weight that is wanted."""
    weights, position = leaves()
    total = energy(weights, position)
    with watch() as watching:
        (found,) = torch.autograd.grad(total, weights["second"], retain_graph=True)
    assert watching.seen == {"mix_outer": 1}
    close(found, expected()["second"])
    with watch() as watching:
        (found,) = torch.autograd.grad(total, weights["table"])
    assert watching.seen == {"mix": 2, "transposed": 1, "spline_adjoint": 1}
    close(found, expected()["table"])


@pytest.mark.parametrize("name", ["first", "second", "table", "position"])
def test_each_leaf_by_itself(name: str) -> None:
    """With autograd.grad and with backward(inputs=...), from the same graph."""
    weights, position = leaves()
    leaf = {**weights, "position": position}[name]
    total = energy(weights, position)
    close(torch.autograd.grad(total, leaf, retain_graph=True)[0], expected()[name])
    total.backward(inputs=[leaf])
    close(leaf.grad, expected()[name])
    others = [*weights.values(), position]
    assert all(value.grad is None for value in others if value is not leaf)


def test_one_graph_asked_twice() -> None:
    """What one pass leaves out, the next may still ask for."""
    weights, position = leaves()
    total = energy(weights, position)
    close(torch.autograd.grad(total, position, retain_graph=True)[0], expected()["position"])
    total.backward()
    for name, leaf in {**weights, "position": position}.items():
        close(leaf.grad, expected()[name])


def test_intermediate_results_can_be_asked_for() -> None:
    """A tensor in the middle is neither a leaf nor on the way to one that is asked for."""
    found = []
    for kernel in ("fused", "plain"):
        weights, position = leaves()
        doubled = {name: value * 2 for name, value in weights.items()}
        x = position.sin()
        found.append(torch.autograd.grad(energy(doubled, x, kernel), [x, *doubled.values()]))
    for one, other in zip(*found, strict=True):
        close(one, other)


def test_weights_without_gradients() -> None:
    weights, position = start()
    (force,) = torch.autograd.grad(energy(weights, position.requires_grad_()), position)
    close(force, expected()["position"])


def test_hooks_see_every_gradient() -> None:
    weights, position = leaves()
    seen: list[str] = []
    for name, value in weights.items():
        value.register_hook(lambda _, name=name: seen.append(name))
    energy(weights, position).backward()
    assert sorted(seen) == ["first", "second", "table"]


def loss_gradients(forces: Callable[[Weights, Tensor], Tensor]) -> list[Tensor]:
    weights, position = leaves()
    total = forces(weights, position).square().sum()
    return list(torch.autograd.grad(total, [*weights.values(), position]))


def test_training_on_forces(watch: Any) -> None:
    """The inner pass leaves weights out; the outer one still reaches all of them."""

    def by_tape(kernel: Kernel) -> Callable[[Weights, Tensor], Tensor]:
        def forces(weights: Weights, position: Tensor) -> Tensor:
            total = energy(weights, position, kernel)
            return torch.autograd.grad(total, position, create_graph=True)[0]

        return forces

    def by_transform(weights: Weights, position: Tensor) -> Tensor:
        return grad(energy, argnums=1)(weights, position)

    with watch() as watching:
        weights, position = leaves()
        by_tape("fused")(weights, position)
        by_transform(weights, position)
    assert watching.seen["mix"] == 8
    assert not {"mix_outer", "spline_adjoint"} & set(watching.seen)
    reference = loss_gradients(by_tape("plain"))
    for way in (by_tape("fused"), by_transform):
        for one, other in zip(loss_gradients(way), reference, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_members_and_transforms(watch: Any) -> None:
    """vmap of grad over weights of members, by torch.func alone."""
    weights, position = start()
    stacked = {name: torch.stack([value, -value]) for name, value in weights.items()}

    def all_gradients(kernel: Kernel) -> Weights:
        gradient = grad(lambda w, p: energy(w, p, kernel))
        return vmap(gradient, in_dims=(0, None))(stacked, position)  # type: ignore[no-any-return]

    with watch() as watching:
        found = all_gradients("fused")
    assert watching.seen["spline_slope"] == 0
    for name, value in all_gradients("plain").items():
        close(found[name], value)


def test_network_leaves_weights_out(watch: Any) -> None:
    """Forces of a network of operators: no gradient of a weight before the loss asks."""
    spec = small_spec((1, 8), radial_knots=16, self_contraction=True, pair_radial=True)
    model = Race(spec, kernel="fused")
    batch = graph_of(model, random_frame((1, 8), 6, seed=1))
    params = {
        name: value.requires_grad_() for name, value in model.init(0, dtype=torch.float64).items()
    }
    with watch() as watching:
        outputs = evaluate(model, params, batch)
    assert watching.seen["mix"] > 0
    assert watching.seen["spline_slope"] == len(model.layout)
    assert not {"mix_outer", "spline_adjoint"} & set(watching.seen)
    with watch() as watching:
        outputs.forces.square().sum().backward()
    assert watching.seen["mix_outer"] > 0
    assert watching.seen["spline_adjoint"] > 0
    plain = Race(spec, kernel="plain")
    again = {name: value.detach().requires_grad_() for name, value in params.items()}
    evaluate(plain, again, batch).forces.square().sum().backward()
    for name, value in params.items():
        if again[name].grad is None:
            assert value.grad is None
        else:
            torch.testing.assert_close(value.grad, again[name].grad, rtol=1e-9, atol=1e-9)
