"""Losses: formulas by hand, missing labels, weights, and gradients that reach every head."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Outputs, Params
from bayrace.likelihood.gaussian import GaussianNoise
from bayrace.likelihood.mse import Robust, SquaredError
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NO_NOISE, EnergyNoise, Lambdas, NoiseSpec, noise
from bayrace.models.race.network import Race
from bayrace.nn.covariance import CovarianceForm
from bayrace.testing import graph_of, random_frame, small_spec

LAMBDAS = Lambdas(energy=2.0, forces=30.0, stress=5.0)
CELL = torch.eye(3, dtype=torch.float64).numpy() * 4.2


def joint(covariance: CovarianceForm = "equivariant", *, stress: bool = False) -> NoiseSpec:
    return NoiseSpec("joint", "extensive", covariance, stress)


def tiny(noise_spec: NoiseSpec) -> Race:
    return Race(small_spec((1, 8), noise=noise_spec))


def situation(
    noise_spec: NoiseSpec, *, stress: bool = False
) -> tuple[Race, Params, GraphBatch, Labels]:
    model = tiny(noise_spec)
    params = model.init(0, dtype=torch.float64)
    cell = CELL if stress else None
    batch = graph_of(model, *[random_frame((1, 8), n, seed=n, cell=cell) for n in (3, 4)])
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = Labels(draw(2), draw(7, 3), draw(2, 6), torch.ones(2, dtype=torch.float64))
    return model, params, batch, labels


def gaussian(noise_spec: NoiseSpec, **changes: object) -> GaussianNoise:
    base = GaussianNoise(noise=noise_spec, lambdas=LAMBDAS, beta=0.0, warmup=False)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_squared_error_by_hand() -> None:
    model, params, batch, labels = situation(NoiseSpec("none", "extensive", "equivariant", False))
    outputs = evaluate(model, params, batch)
    loss = SquaredError(LAMBDAS, per_atom_energy=True, robust="none", huber_delta=1.0)
    energy = ((outputs.energy - labels.energy) / torch.tensor([3, 4])).square().mean()
    forces = (outputs.forces - labels.forces).square().mean()
    found = loss.loss(outputs, labels, batch)
    torch.testing.assert_close(found.total, 2 * energy + 30 * forces)


@pytest.mark.parametrize("robust", ["huber", "l1"])
def test_robust_errors(robust: Robust) -> None:
    model, params, batch, labels = situation(NoiseSpec("none", "extensive", "equivariant", False))
    outputs = evaluate(model, params, batch)
    loss = SquaredError(LAMBDAS, per_atom_energy=False, robust=robust, huber_delta=0.5)
    size = (outputs.forces - labels.forces).abs()
    if robust == "l1":
        expected = size.mean()
    else:  # a parabola inside, its tangent outside
        expected = torch.where(size < 0.5, size**2, size - 0.25).mean()
    torch.testing.assert_close(loss.forces(outputs, labels, batch), expected)


@pytest.mark.parametrize("form", ["equivariant", "cholesky"])
@pytest.mark.parametrize("energy_form", ["extensive", "mean_log"])
def test_joint_likelihood_equals_dense_gaussians(
    form: CovarianceForm, energy_form: EnergyNoise
) -> None:
    """Against torch.distributions: with λ = 1 the loss is -2 log p up to constants."""
    spec = replace(joint(form, stress=True), energy=energy_form)
    model, params, batch, labels = situation(spec, stress=True)
    outputs = evaluate(model, params, batch, stress=True)
    ones = Lambdas(1.0, 1.0, 1.0)
    seen = noise(outputs, batch, spec, ones)
    assert seen.energy is not None
    assert seen.forces is not None
    assert seen.stress is not None
    assert outputs.stress is not None
    tau = torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    normal = torch.distributions.Normal(outputs.energy, seen.energy.sqrt())
    energy = (-2 * normal.log_prob(labels.energy) - tau).mean()
    vector = torch.distributions.MultivariateNormal(outputs.forces, seen.forces)
    forces = (-2 * vector.log_prob(labels.forces) - 3 * tau).mean()
    tensor = torch.distributions.MultivariateNormal(outputs.stress, seen.stress)
    # the loss works in Mandel components: three of them are √2 times Voigt's
    stress = (-2 * tensor.log_prob(labels.stress) - 6 * tau).mean() + 3 * torch.log(
        torch.tensor(2.0, dtype=torch.float64)
    )
    found = gaussian(spec, lambdas=ones).loss(outputs, labels, batch).parts
    torch.testing.assert_close(found["energy"], energy, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["forces"], forces, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["stress"], stress, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["equivariant", "cholesky"])
def test_gradients_of_the_joint_likelihood_reach_every_head(form: CovarianceForm) -> None:
    spec = joint(form, stress=True)
    model, params, batch, labels = situation(spec, stress=True)
    likelihood = gaussian(spec)
    plain = evaluate(model, params, batch, stress=True)
    names = ("energy", "forces", "stress", "energy_head", "forces_head", "stress_head")
    inputs = tuple(getattr(plain, name).detach().requires_grad_() for name in names)

    def loss(*values: torch.Tensor) -> torch.Tensor:
        outputs: Outputs = plain._replace(**dict(zip(names, values, strict=True)))
        return likelihood.loss(outputs, labels, batch).total

    assert torch.autograd.gradcheck(loss, inputs)
    for name, gradient in zip(names, torch.autograd.grad(loss(*inputs), inputs), strict=True):
        assert gradient.abs().amin() > 0, f"{name} has an entry without gradient"


def test_gradients_reach_every_parameter() -> None:
    """By finite differences along the gradient of each parameter tensor, through the forces."""
    spec = joint(stress=True)
    model, params, batch, labels = situation(spec, stress=True)
    likelihood = gaussian(spec)

    def loss(values: Params) -> torch.Tensor:
        outputs = evaluate(model, values, batch, stress=True)
        return likelihood.loss(outputs, labels, batch).total

    gradients = torch.func.grad(loss)(params)
    for name, gradient in gradients.items():
        size = gradient.norm()
        assert size > 0, f"{name} is not reached"
        step = 1e-5 * gradient / size
        ahead = loss(params | {name: params[name] + step})
        behind = loss(params | {name: params[name] - step})
        torch.testing.assert_close((ahead - behind) / 2e-5, size, rtol=1e-5, atol=1e-6)


def test_missing_labels_do_not_count() -> None:
    spec = joint(stress=True)
    model, params, batch, labels = situation(spec, stress=True)
    outputs = evaluate(model, params, batch, stress=True)
    likelihood = gaussian(spec)
    forces = labels.forces.clone()
    forces[batch.structure_index == 0] = torch.nan
    energy = labels.energy.clone()
    energy[1] = torch.nan
    partial = replace(labels, forces=forces, energy=energy, stress=labels.stress * torch.nan)
    found = likelihood.loss(outputs, partial, batch).parts
    whole = [
        likelihood.loss(evaluate(model, params, graph, stress=True), label, graph).parts
        for graph, label in _alone(model, batch, labels)
    ]
    torch.testing.assert_close(found["energy"], whole[0]["energy"])
    torch.testing.assert_close(found["forces"], whole[1]["forces"])
    assert found["stress"] == 0


def test_missing_labels_leave_finite_gradients() -> None:
    spec = joint(stress=True)
    model, params, _, _ = situation(spec)
    frames = [random_frame((1, 8), 3, seed=0), random_frame((1, 8), 3, seed=1, cell=CELL)]
    batch = graph_of(model, *frames)  # the molecule has no stress
    nan = torch.full((2, 6), torch.nan, dtype=torch.float64)
    labels = Labels(nan[:, 0], torch.zeros(6, 3).double(), nan.clone(), torch.ones(2).double())
    labels.stress[1] = 0.1

    def loss(values: Params) -> torch.Tensor:
        outputs = evaluate(model, values, batch, stress=True)
        return gaussian(spec).loss(outputs, labels, batch).total

    gradients = torch.func.grad(loss)(params)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_weight_two_counts_twice() -> None:
    spec = joint()
    model, params, batch, labels = situation(spec)
    outputs = evaluate(model, params, batch)
    heavy = replace(labels, weight=torch.tensor([1.0, 2.0], dtype=torch.float64))
    light = replace(labels, weight=torch.tensor([1.0, 0.0], dtype=torch.float64))
    total = [gaussian(spec).loss(outputs, lab, batch).total for lab in (heavy, labels, light)]
    torch.testing.assert_close(total[0] - total[1], total[1] - total[2])


def test_energy_only_likelihood_takes_forces_by_squares() -> None:
    spec = NoiseSpec("energy", "extensive", "equivariant", False)
    model, params, batch, labels = situation(spec)
    outputs = evaluate(model, params, batch)
    found = gaussian(spec).loss(outputs, labels, batch).parts
    torch.testing.assert_close(
        found["forces"], 30 * (outputs.forces - labels.forces).square().mean()
    )


def test_beta_weighs_by_the_variance_without_its_gradient() -> None:
    spec = joint()
    model, params, batch, labels = situation(spec)
    outputs = evaluate(model, params, batch)
    plain = gaussian(spec).loss(outputs, labels, batch).parts["energy"]
    weighted = gaussian(spec, beta=1.0).loss(outputs, labels, batch).parts["energy"]
    assert outputs.energy_head is not None
    variance = torch.zeros(2, dtype=torch.float64).index_add(
        0, batch.structure_index, outputs.energy_head.exp()
    )
    error = outputs.energy - labels.energy
    terms = 2 * error.square() / variance + variance.log()
    torch.testing.assert_close(plain, terms.mean())
    torch.testing.assert_close(weighted, (terms * variance).mean())


def test_models_are_compared_by_the_likelihood_proper() -> None:
    plain = gaussian(joint())
    assert gaussian(joint(), beta=0.5, warmup=True).score() == plain.score() == plain


def test_warmup_moves_means_by_squares_only() -> None:
    spec = joint()
    model, params, batch, labels = situation(spec)
    outputs = evaluate(model, params, batch)
    forces = outputs.forces.detach().requires_grad_()
    head = outputs.forces_head.detach().requires_grad_()  # type: ignore[union-attr]
    warm = gaussian(spec, warmup=True)
    total = warm.loss(outputs._replace(forces=forces, forces_head=head), labels, batch).total
    gradient, of_head = torch.autograd.grad(total, (forces, head))
    torch.testing.assert_close(gradient, 30 * 2 * (forces - labels.forces) / forces.numel())
    assert of_head.abs().min() > 0


def _alone(model: Race, batch: GraphBatch, labels: Labels) -> list[tuple[GraphBatch, Labels]]:
    """The structures of `situation` one by one."""
    result = []
    for index, atoms in enumerate((3, 4)):
        graph = graph_of(model, random_frame((1, 8), atoms, seed=atoms, cell=CELL))
        mine = batch.structure_index == index
        result.append(
            (
                graph,
                Labels(
                    labels.energy[index : index + 1],
                    labels.forces[mine],
                    labels.stress[index : index + 1],
                    labels.weight[index : index + 1],
                ),
            )
        )
    return result


def test_squared_error_of_the_stress_does_not_depend_on_the_axes() -> None:
    """Shear counts twice, as in the tensor's norm."""
    model, params, batch, labels = situation(NO_NOISE, stress=True)
    outputs = evaluate(model, params, batch, stress=True)
    assert outputs.stress is not None
    squares = SquaredError(LAMBDAS, per_atom_energy=False, robust="none", huber_delta=1.0)
    found = squares.loss(outputs, labels, batch).parts["stress"]
    difference = (outputs.stress - labels.stress).double()
    norm = difference[:, :3].square().sum(-1) + 2 * difference[:, 3:].square().sum(-1)
    torch.testing.assert_close(found.double(), LAMBDAS.stress * norm.mean() / 6)


def test_a_factor_beyond_its_precision_is_a_loss_that_is_not_finite() -> None:
    """What training calls diverged; the factorisation itself only knows a batch element."""
    noise_spec = joint("cholesky")
    model, params, batch, labels = situation(noise_spec)
    outputs = evaluate(
        model,
        {name: value.float() for name, value in params.items()},
        batch.to(dtype=torch.float32),
    )
    assert outputs.forces_head is not None
    huge = outputs.forces_head.detach().clone()
    huge[:, :3] = 5.0  # logarithms of the diagonal
    huge[:, 3:] = torch.linspace(1e6, 3e6, huge[:, 3:].numel()).view(-1, 3)  # below the diagonal
    huge.requires_grad_()
    found = gaussian(noise_spec).loss(outputs._replace(forces_head=huge), labels, batch)
    assert found.total.isnan()
    assert found.parts["energy"].isfinite()
    assert found.total.requires_grad
