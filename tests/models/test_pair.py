from __future__ import annotations

import numpy as np
import pytest
import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Params
from bayrace.core.protocols import Model
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, NoiseSpec, noise
from bayrace.models.pair import PairModel
from bayrace.nn.radial import bessel_basis

CUTOFF = 3.0


def batch_of(*, periodic: bool, count: int = 1) -> GraphBatch:
    random = np.random.default_rng(2)
    frames = [
        Frame(
            numbers=np.array([8, 1, 1, 6]),
            positions=random.uniform(0, 2.5, (4, 3)),
            cell=np.diag([2.6, 2.7, 2.8]) if periodic else np.zeros((3, 3)),
            pbc=np.full(3, periodic),
            energy=0.0,
            forces=np.zeros((4, 3)),
            stress=None,
            config_type="Default",
            weight=1.0,
            source="made",
            index=index,
        )
        for index in range(count)
    ]
    elements = (1, 6, 8)
    data = Dataset(
        frames, elements=elements, cutoff=CUTOFF, references=dict.fromkeys(elements, 0.0)
    )
    return data.batch(range(count), dtype=torch.float64, device="cpu")[0]


def model(spec: NoiseSpec | None = None) -> PairModel:
    given = {} if spec is None else {"noise_spec": spec}
    return PairModel(elements=(1, 6, 8), cutoff=CUTOFF, functions=4, **given)


def joint(covariance: str) -> NoiseSpec:
    return NoiseSpec(kind="joint", energy="extensive", covariance=covariance, stress=False)


def test_is_a_model() -> None:
    assert isinstance(model(), Model)


def test_energy_of_a_molecule_is_the_sum_over_pairs() -> None:
    batch, pair = batch_of(periodic=False), model()
    params = pair.init(0, dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(4):
        for j in range(i):
            distance = (batch.positions[i] - batch.positions[j]).norm()[None]
            low, high = sorted((int(batch.species[i]), int(batch.species[j])))
            weights = params["weights"][high * (high + 1) // 2 + low]
            basis = bessel_basis(distance, cutoff=CUTOFF, count=4, power=2)
            expected = expected + torch.where(distance < CUTOFF, basis @ weights, 0.0).sum()
    heads = pair.energy(params, batch)
    torch.testing.assert_close(heads.energy[0], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(heads.atomic_energy.sum(), heads.energy[0])


@pytest.mark.parametrize("periodic", [False, True])
def test_forces_are_derivatives(periodic: bool) -> None:
    batch, pair = batch_of(periodic=periodic), model()
    params = pair.init(1, dtype=torch.float64)
    forces = evaluate(pair, params, batch, stress=periodic).forces
    step = 1e-5
    for atom, axis in [(0, 0), (2, 1), (3, 2)]:
        moved = torch.zeros_like(batch.positions)
        moved[atom, axis] = step
        up, down = (
            pair.energy(params, batch.__class__(**{**vars(batch), "positions": place})).energy[0]
            for place in (batch.positions + moved, batch.positions - moved)
        )
        numeric = -(up - down) / (2 * step)
        torch.testing.assert_close(forces[atom, axis], numeric, rtol=1e-7, atol=1e-8)


def test_is_linear_and_works_under_vmap_and_grad() -> None:
    batch, pair = batch_of(periodic=True, count=2), model(joint("equivariant"))
    members = [pair.init(seed, dtype=torch.float64) for seed in range(3)]
    stacked = {name: torch.stack([each[name] for each in members]) for name in members[0]}

    def predict(params: Params) -> tuple[torch.Tensor, torch.Tensor | None]:
        outputs = evaluate(pair, params, batch, stress=True)
        return outputs.forces, outputs.stress

    forces, stress = torch.func.vmap(predict)(stacked)
    alone = evaluate(pair, members[1], batch, stress=True)
    torch.testing.assert_close(forces[1], alone.forces)
    torch.testing.assert_close(stress[1], alone.stress)
    gradient = torch.func.grad(lambda p: pair.energy(p, batch).energy[0])(members[0])["weights"]
    features = pair.features(batch)[batch.structure_index == 0].sum(0)
    torch.testing.assert_close(gradient, features)
    torch.testing.assert_close(alone.energy[0], (features * members[1]["weights"]).sum())


@pytest.mark.parametrize("covariance", ["equivariant", "cholesky"])
def test_noise_heads_are_one_number_for_all(covariance: str) -> None:
    spec = joint(covariance)
    batch, pair = batch_of(periodic=False), model(spec)
    params = pair.init(0, dtype=torch.float64)
    params["energy_noise"], params["forces_noise"] = (
        torch.tensor(value, dtype=torch.float64) for value in (-2.0, -3.0)
    )
    outputs = evaluate(pair, params, batch)
    found = noise(outputs, batch, spec, Lambdas(energy=1.0, forces=1.0, stress=1.0))
    assert found.energy is not None
    assert found.forces is not None
    assert float(found.energy[0]) == pytest.approx(4 * np.exp(-2.0))
    expected = np.exp(-3.0) * torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    torch.testing.assert_close(found.forces, expected, rtol=0.0, atol=2e-6)


def test_noise_of_the_energy_only_and_of_nothing() -> None:
    batch = batch_of(periodic=False)
    bare = model()
    assert bare.init(0).keys() == {"weights"}
    assert bare.energy(bare.init(0, dtype=torch.float64), batch).energy_head is None
    spec = NoiseSpec(kind="energy", energy="extensive", covariance="equivariant", stress=False)
    some = model(spec)
    heads = some.energy(some.init(0, dtype=torch.float64), batch)
    assert heads.energy_head is not None
    assert heads.forces_head is None


def test_stress_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="PairModel has no stress noise"):
        model(NoiseSpec(kind="joint", energy="extensive", covariance="equivariant", stress=True))
