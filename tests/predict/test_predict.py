"""The predictive mixture against a loop over members written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.core.graph import GraphBatch
from bayrace.core.prediction import Prediction
from bayrace.data.batch import build_graph, collate
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NO_NOISE, noise
from bayrace.posterior import laplace
from bayrace.posterior.laplace import LaplaceOptions
from bayrace.potential.potential import Potential
from bayrace.predict.moments import concatenate, with_label_noise
from bayrace.predict.predict import Predictive, predict, predict_frames, reference_tensor

Make = Callable[..., Potential]


def structures() -> list[Atoms]:
    """Mixed species order, a molecule and small periodic cells."""
    crystal = bulk("C", cubic=True)
    crystal.symbols[3] = "O"
    crystal.rattle(0.1, seed=1)
    return [molecule("CH3CH2OH"), crystal, molecule("CO2"), bulk("C")]


def frames_of(atoms: list[Atoms]) -> list[Frame]:
    return [frame_from_atoms(a, keys=None, index=i) for i, a in enumerate(atoms)]


def batch_of(potential: Potential, frames: list[Frame]) -> GraphBatch:
    model = potential.model
    graphs = [build_graph(f, elements=model.elements, cutoff=model.cutoff) for f in frames]
    return collate(graphs, elements_count=len(model.elements), dtype=potential.dtype, device="cpu")


def run(potential: Potential, frames: list[Frame], **keywords: Any) -> Prediction:
    return predict(source_of(potential), batch_of(potential, frames), **keywords)


def source_of(potential: Potential, **changes: Any) -> Predictive:
    """With the members as they are drawn, not folded, and without a closed form."""
    known = {"members": potential.members, "references": potential.references, "closed": None}
    return replace(potential.predictive, **{**known, **changes})


def tensors(prediction: Prediction) -> dict[str, torch.Tensor]:
    found = {
        "atomic_energy": prediction.atomic_energy,
        "structure_index": prediction.structure_index,
    }
    for name in ("energy", "forces", "stress"):
        value = getattr(prediction, name)
        if value is not None:
            parts = ("mean", "aleatoric", "epistemic")
            found |= {f"{name}.{part}": getattr(value, part) for part in parts}
    return found


def assert_same(left: Prediction, right: Prediction, tolerance: float = 1e-10) -> None:
    ours, theirs = tensors(left), tensors(right)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(
            value, theirs[name], rtol=tolerance, atol=tolerance, equal_nan=True
        )


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_mixture_moments_by_hand(make_potential: Make, chunk_size: int | None) -> None:
    potential = make_potential(seeds=(0, 1, 2))
    frames = frames_of(structures())
    batch = batch_of(potential, frames)
    found = run(potential, frames, stress=True, chunk_size=chunk_size)

    outputs, spreads = [], []
    for m in range(3):
        params = {name: value[m] for name, value in potential.members.items()}
        output = evaluate(potential.model, params, batch, stress=True)
        outputs.append(output)
        spreads.append(noise(output, batch, potential.model.noise_spec, potential.lambdas))

    zero = [sum(-13.6 * z for z in frame.numbers) for frame in frames]
    energy = torch.stack([o.energy for o in outputs]) + torch.tensor(zero, dtype=torch.float64)
    torch.testing.assert_close(found.energy.mean, energy.mean(0))
    torch.testing.assert_close(found.energy.epistemic, energy.var(0, correction=0))
    torch.testing.assert_close(
        found.energy.aleatoric, torch.stack([s.energy for s in spreads]).mean(0)
    )

    forces = torch.stack([o.forces for o in outputs])[:, batch.file_order]
    torch.testing.assert_close(found.forces.mean, forces.mean(0))
    for atom in (0, 5, 12):
        covariance = np.cov(forces[:, atom].T.numpy(), bias=True)
        np.testing.assert_allclose(found.forces.epistemic[atom], covariance, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        found.forces.aleatoric, torch.stack([s.forces for s in spreads]).mean(0)[batch.file_order]
    )

    assert found.stress is not None
    stress = torch.stack([o.stress for o in outputs])
    torch.testing.assert_close(found.stress.mean, stress.mean(0), equal_nan=True)
    assert found.stress.mean.isnan().any(1).tolist() == [True, False, True, False]
    covariance = np.cov(stress[:, 1].T.numpy(), bias=True)
    np.testing.assert_allclose(found.stress.epistemic[1], covariance, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        found.stress.aleatoric, torch.stack([s.stress for s in spreads]).mean(0)
    )


def test_order_is_that_of_the_files(make_potential: Make) -> None:
    potential = make_potential(seeds=(0, 1))
    frames = frames_of(structures())
    together = run(potential, frames, stress=True)
    assert together.structure_index.tolist() == [s for s, f in enumerate(frames) for _ in f.numbers]
    alone = [run(potential, [frame], stress=True) for frame in frames]
    assert_same(together, concatenate(alone))
    permuted = frames_of([structures()[0][::-1]])
    torch.testing.assert_close(run(potential, permuted).forces.mean.flip(0), alone[0].forces.mean)


def test_one_member_knows_no_ignorance(make_potential: Make) -> None:
    frames = frames_of(structures())
    one = run(make_potential(seeds=(4,)), frames, stress=True)
    assert one.stress is not None
    assert not one.energy.epistemic.any()
    assert not one.forces.epistemic.any()
    assert one.stress.epistemic[1].abs().max() == 0
    assert one.energy.aleatoric.min() > 0
    # equal members through vmap agree with the plain call
    assert_same(run(make_potential(seeds=(4, 4)), frames, stress=True), one)


def test_without_noise_heads_aleatoric_is_zero(make_potential: Make) -> None:
    frames = frames_of(structures())
    quiet = run(make_potential(seeds=(0, 1), noise=NO_NOISE), frames, stress=True)
    assert quiet.stress is not None
    for value in (quiet.energy, quiet.forces, quiet.stress):
        assert not value.aleatoric.any()
    assert quiet.energy.epistemic.min() > 0
    switched_off = run(make_potential(seeds=(0, 1)), frames, uncertainty="none")
    assert not switched_off.forces.aleatoric.any()
    assert switched_off.stress is None


def test_energy_sums_are_float64(make_potential: Make) -> None:
    frames = frames_of(structures())
    heavy = {1: -13.6, 6: -1029.1234567, 8: -17_660.7654321}
    single, double = make_potential(dtype=torch.float32), make_potential()

    def energy(potential: Potential, references: dict[int, float]) -> torch.Tensor:
        source = source_of(potential, references=references)
        return predict(source, batch_of(potential, frames)).energy.mean

    zero = dict.fromkeys(heavy, 0.0)
    sums = [sum(heavy[int(z)] for z in frame.numbers) for frame in frames]
    exact = torch.tensor(sums, dtype=torch.float64)
    gained = energy(single, heavy) - energy(single, zero)
    assert gained.dtype == torch.float64
    torch.testing.assert_close(gained, exact, rtol=0, atol=1e-9)
    torch.testing.assert_close(energy(single, zero), energy(double, zero), rtol=1e-4, atol=1e-4)


def test_atomic_energies_sum_to_the_energy(make_potential: Make) -> None:
    found = run(make_potential(seeds=(0, 1)), frames_of(structures()))
    total = torch.zeros(4, dtype=torch.float64).index_add(
        0, found.structure_index, found.atomic_energy
    )
    torch.testing.assert_close(total, found.energy.mean)


def test_streaming_equals_one_batch(make_potential: Make) -> None:
    potential = make_potential(seeds=(0, 1))
    frames = frames_of(structures() * 3)
    seen: list[int] = []
    stream = predict_frames(
        source_of(potential),
        iter(frames),
        stress=True,
        edge_budget=600,
        progress=seen.append,
    )
    parts = list(stream)
    assert [frame for group, _ in parts for frame in group] == frames
    assert len(parts) > 2
    assert seen == np.cumsum([len(group) for group, _ in parts]).tolist()
    assert_same(concatenate([p for _, p in parts]), run(potential, frames, stress=True))


def test_no_gradient_is_recorded(make_potential: Make) -> None:
    potential = make_potential()
    for value in potential.members.values():
        value.requires_grad_()
    found = run(potential, frames_of(structures()), stress=True)
    assert not any(tensor.requires_grad for tensor in tensors(found).values())


def test_references_may_be_a_tensor_and_must_be_complete() -> None:
    energies = torch.tensor([1.0, 2.0])
    assert reference_tensor(energies, (1, 6)).dtype == torch.float64
    assert reference_tensor({6: 2.0, 1: 1.0}, (1, 6)).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"no reference energy for atomic numbers \[6\]"):
        reference_tensor({1: 1.0}, (1, 6))


def test_nothing_to_concatenate() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        concatenate([])


def test_noise_of_the_labels_is_added_to_the_aleatoric_part(make_potential: Make) -> None:
    found = run(make_potential(seeds=(0, 1)), frames_of(structures()), stress=True)
    loud = with_label_noise(found, {"energy": 2.0, "forces": 0.5, "stress": 0.1})
    torch.testing.assert_close(loud.energy.aleatoric, found.energy.aleatoric + 4.0)
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(loud.forces.aleatoric, found.forces.aleatoric + 0.25 * eye)
    assert loud.stress is not None
    assert found.stress is not None
    gained = (loud.stress.aleatoric - found.stress.aleatoric)[1]
    isotropic = torch.tensor([1, 1, 1, 0.5, 0.5, 0.5], dtype=torch.float64).diag()  # Voigt
    torch.testing.assert_close(gained, 0.01 * isotropic)
    for name in ("energy", "forces", "stress"):
        assert getattr(loud, name).epistemic is getattr(found, name).epistemic


def test_closed_forms_replace_the_epistemic_part(make_potential: Make) -> None:
    """Laplace of a network without noise: its noise and its spread, in file order, calibrated."""
    potential = make_potential(noise=NO_NOISE)
    frames = frames_of(structures())
    data = Dataset(
        [replace(f, energy=1.0, forces=np.zeros_like(f.positions)) for f in frames],
        elements=potential.elements,
        cutoff=potential.model.cutoff,
        references=potential.references,
    )
    options = LaplaceOptions(
        structure="last_layer",
        predictive="glm",
        samples=1,
        probes=None,
        prior_precision=1.0,
        noise="auto",
        energy_noise=0.3,
        forces_noise=0.2,
    )
    posterior = laplace.fit(
        potential.model,
        potential.posterior.tensors(),
        data,
        options=options,
        lambdas=potential.lambdas,
    )
    fitted = replace(potential, posterior=posterior)
    found = fitted.predict(frames, stress=True)
    torch.testing.assert_close(found.energy.mean, potential.predict(frames).energy.mean)
    torch.testing.assert_close(found.energy.aleatoric, torch.full((4,), 0.09, dtype=torch.float64))
    members = posterior.draw(4000, seed=1)
    source = source_of(fitted, members=members)
    drawn = predict(source, batch_of(potential, frames), chunk_size=200)
    error = 5 * (2 / 4000) ** 0.5  # standard errors of a variance
    ratio = drawn.energy.epistemic / found.energy.epistemic
    assert (ratio - 1).abs().max() < error
    traces = [p.forces.epistemic.diagonal(dim1=1, dim2=2).sum(-1) for p in (drawn, found)]
    moving = traces[1] > 1e-20  # some forces are zero by symmetry
    assert moving.sum() > 15
    assert (traces[0] / traces[1] - 1)[moving].abs().max() < error
    cheap = next(iter(fitted.predict_frames(frames, uncertainty="energy")))[1]
    torch.testing.assert_close(cheap.energy.epistemic, found.energy.epistemic)
    assert cheap.forces.epistemic.isnan().all()
    scaled = Calibration("scale", Recalibration(2.0, 9), Recalibration(3.0, 9), None, 9, "x")
    calibrated = replace(fitted, calibration=scaled)
    torch.testing.assert_close(calibrated.predict(frames).energy.total, 4 * found.energy.total)
    batch = calibrated.predict_batch(batch_of(potential, frames))
    torch.testing.assert_close(batch.forces.total, 9 * found.forces.total)
    raw = next(iter(calibrated.predict_frames(frames, calibrated=False)))[1]
    torch.testing.assert_close(raw.energy.total, found.energy.total)
