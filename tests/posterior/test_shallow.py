"""A shallow ensemble against its members, evaluated one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.core.protocols import ClosedForm
from bayrace.data.dataset import Dataset
from bayrace.likelihood.gaussian import GaussianNoise
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, NoiseSpec, members_variance
from bayrace.models.race.network import Race
from bayrace.posterior.shallow import Shallow
from bayrace.testing import check_symmetries, graph_of, random_frame, small_spec

ELEMENTS = (1, 8)
MEMBERS = 5
NOISE = NoiseSpec("shallow", "extensive", "equivariant", stress=False, members=MEMBERS)
MODEL = Race(small_spec(ELEMENTS, noise=NOISE))


def ensemble(energy_weight: float = 1.0) -> Shallow:
    params = MODEL.init(0, dtype=torch.float64)
    return Shallow.of(MODEL, params, energy_weight=energy_weight)


def test_variances_are_those_of_the_members() -> None:
    posterior = ensemble()
    frames = [random_frame(ELEMENTS, n, seed=n) for n in (4, 6)]
    frames.append(random_frame(ELEMENTS, 4, seed=9, cell=np.eye(3) * 4.2))
    batch = graph_of(MODEL, *frames)
    mean = {name: value[0] for name, value in posterior.draw(1, seed=0).items()}
    outputs = evaluate(MODEL, mean, batch, stress=True)
    spread = posterior.spread(MODEL, mean, batch, outputs, forces=True, stress=True)
    members = posterior.draw(MEMBERS, seed=0)
    each = [
        evaluate(MODEL, {name: value[m] for name, value in members.items()}, batch, stress=True)
        for m in range(MEMBERS)
    ]
    energies = torch.stack([one.energy for one in each])
    torch.testing.assert_close(energies.mean(0), outputs.energy)
    torch.testing.assert_close(spread.energy, energies.var(0, correction=0))
    assert outputs.energy_head is not None
    torch.testing.assert_close(members_variance(outputs.energy_head, batch), spread.energy)
    forces = torch.stack([one.forces for one in each])
    deviation = forces - forces.mean(0)
    expected = torch.einsum("mni,mnj->nij", deviation, deviation) / MEMBERS
    torch.testing.assert_close(spread.forces, expected)
    stress = torch.stack([one.stress for one in each if one.stress is not None])
    deviation = stress - stress.mean(0)
    expected = torch.einsum("msi,msj->sij", deviation, deviation) / MEMBERS
    torch.testing.assert_close(spread.stress, expected, equal_nan=True)


def test_loss_of_the_energy_sees_the_spread() -> None:
    """-2 log N(E; mean, variance over members), λ on the quadratic part only."""
    frame = replace(random_frame(ELEMENTS, 5, seed=1), energy=1.5, forces=np.zeros((5, 3)))
    data = Dataset(
        [frame], elements=ELEMENTS, cutoff=MODEL.cutoff, references=dict.fromkeys(ELEMENTS, 0.0)
    )
    batch, labels = data.batch([0], dtype=torch.float64)
    outputs = evaluate(MODEL, MODEL.init(0, dtype=torch.float64), batch)
    assert outputs.energy_head is not None
    variance = members_variance(outputs.energy_head, batch) + 1e-8  # the floor
    likelihood = GaussianNoise(NOISE, Lambdas(3.0, 0.0, 1.0), beta=0.0, warmup=False)
    found = likelihood.loss(outputs, labels, batch).parts["energy"]
    expected = 3.0 * (outputs.energy - 1.5) ** 2 / variance + variance.log()
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_weights_of_the_loss_are_taken_back() -> None:
    ratio = ensemble(4.0).last.factor / ensemble(1.0).last.factor
    torch.testing.assert_close(ratio, torch.full_like(ratio, 0.5))


def test_symmetries_file_and_refusals() -> None:
    posterior = ensemble()
    mean = {name: value[0] for name, value in posterior.draw(1, seed=0).items()}
    check_symmetries(MODEL, mean, random_frame(ELEMENTS, 6, seed=3))
    again = Shallow.restore(posterior.tensors(), posterior.options())
    assert isinstance(again, ClosedForm)
    assert all(torch.equal(again.tensors()[k], v) for k, v in posterior.tensors().items())
    assert torch.equal(again.to(dtype=torch.float32).last.factor, posterior.last.factor)
    with pytest.raises(ValueError, match="samples=6: this ensemble has 1 to 5 to draw"):
        posterior.draw(6, seed=0)
    point = Race(small_spec(ELEMENTS))
    with pytest.raises(ValueError, match=r"train one with loss\.kind: shallow"):
        Shallow.of(point, point.init(0), energy_weight=1.0)
    with pytest.raises(ValueError, match="at least 2 members"):
        replace(NOISE, members=1)
