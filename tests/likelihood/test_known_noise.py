"""Known heteroscedastic, anisotropic noise is learned: σ_E and Σ within 10 %, λ corrected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.core.outputs import Params
from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import Frame, bare_frame
from bayrace.likelihood.gaussian import GaussianNoise
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, noise
from bayrace.models.race.network import Race
from bayrace.testing import small_spec
from bayrace.train.adam import AdamSettings
from bayrace.train.optim import clip, init, step

Floats = npt.NDArray[np.float64]
LAMBDAS = Lambdas(energy=5.0, forces=20.0, stress=1.0)
FRAMES, HELD_OUT, BATCH = 7500, 200, 150


def water(random: np.random.Generator) -> Frame:
    """A distorted, randomly turned water molecule."""
    angle = random.uniform(1.6, 2.2)
    lengths = random.uniform(0.85, 1.15, size=2)
    arms = np.array([[1.0, 0, 0], [np.cos(angle), np.sin(angle), 0]]) * lengths[:, None]
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    positions = np.vstack([arms, np.zeros(3)]) @ turn.T
    nowhere = np.zeros(3, dtype=bool)
    return bare_frame(np.array([1, 1, 8]), positions, np.zeros((3, 3)), nowhere, source="water")


def true_noise(frame: Frame) -> tuple[float, Floats]:
    """σ_E² and Σ of each atom: hydrogens are noisy along their bond, more so when it is long."""
    arms = frame.positions[:2] - frame.positions[2]
    lengths = np.linalg.norm(arms, axis=1)
    along = arms / lengths[:, None]
    spread = 0.1 + 0.6 * (lengths - 0.85)
    bond = spread[:, None, None] ** 2 * along[:, :, None] * along[:, None, :]
    hydrogen = 0.08**2 * np.eye(3) + bond
    oxygen = 0.12**2 * np.eye(3)
    variance = 0.02**2 + 0.05 * float(((lengths - 0.85) ** 2).sum())
    return variance, np.concatenate([hydrogen, oxygen[None]])


def student() -> Race:
    spec = small_spec(
        (1, 8),
        cutoff=3.0,
        mean_neighbours=2.0,
        hidden="8x0e+8x1o+8x2e",
        features=8,
        radial_basis=6,
        radial_hidden=(16,),
        readout_hidden=24,
    )
    return Race(spec)


def labelled(
    model: Race, truth: Params, frames: list[Frame], random: np.random.Generator
) -> tuple[GraphBatch, Labels]:
    """Energies and forces of a known network plus the known noise."""
    graphs = [build_graph(f, elements=model.elements, cutoff=model.cutoff) for f in frames]
    batch = collate(graphs, elements_count=2, dtype=torch.float32, device="cpu")
    clean = evaluate(model, truth, batch)
    variances, covariances = zip(*map(true_noise, frames), strict=True)
    energy_noise = random.normal(size=len(frames)) * np.sqrt(variances)
    factors = np.linalg.cholesky(np.concatenate(covariances))
    forces_noise = np.einsum("nab,nb->na", factors, random.normal(size=(len(factors), 3)))
    in_file_order = torch.from_numpy(forces_noise).float()
    order = torch.argsort(batch.file_order)
    return batch, Labels(
        energy=clean.energy.detach() + torch.from_numpy(energy_noise),
        forces=clean.forces.detach() + in_file_order[order],
        stress=torch.full((len(frames), 6), torch.nan),
        weight=torch.ones(len(frames)),
    )


def test_known_noise_is_learned_within_ten_percent() -> None:
    random = np.random.default_rng(0)
    model = student()
    truth = model.init(7)
    frames = [water(random) for _ in range(FRAMES + HELD_OUT)]
    chunks = [frames[i : i + BATCH] for i in range(0, FRAMES, BATCH)]
    data = [labelled(model, truth, chunk, random) for chunk in chunks]
    learned = _fit(model, truth, data, epochs=15)

    unseen = frames[FRAMES:]
    batch, _ = labelled(model, truth, unseen, random)
    found = noise(evaluate(model, learned, batch), batch, model.noise_spec, LAMBDAS)
    assert found.energy is not None
    assert found.forces is not None
    variances, covariances = zip(*map(true_noise, unseen), strict=True)
    energy_ratio = found.energy.detach().sqrt().numpy() / np.sqrt(variances)
    exact = np.concatenate(covariances)
    error = np.linalg.norm(found.forces.detach()[batch.file_order].numpy() - exact, axis=(1, 2))
    relative = error / np.linalg.norm(exact, axis=(1, 2))
    assert abs(np.median(energy_ratio) - 1) < 0.05
    assert np.abs(energy_ratio - 1).mean() < 0.1
    assert relative.mean() < 0.1


def _fit(
    model: Race, start: Params, data: list[tuple[GraphBatch, Labels]], *, epochs: int
) -> Params:
    """Joint likelihood with cosine annealing.

    The means start where they belong, so that the test is about noise; all weights are trained.
    The noise heads start at random.
    """
    warm = GaussianNoise(model.noise_spec, LAMBDAS, beta=0.0, warmup=True)
    likelihood = replace(warm, warmup=False)
    settings = AdamSettings("amsgrad", 0.02, 0.0, (0.9, 0.999), 1e-8)
    params = {name: value.clone().requires_grad_() for name, value in start.items()}
    state, total = init(settings, params), epochs * len(data)
    for done in range(total):
        batch, labels = data[done % len(data)]
        chosen = warm if done < total // 3 else likelihood
        loss = chosen.loss(evaluate(model, params, batch), labels, batch).total
        gradients = torch.autograd.grad(loss, list(params.values()))
        clip(gradients, maximum=10.0)
        rate = settings.lr * (0.01 + 0.99 * (1 + np.cos(np.pi * done / total)) / 2)
        step(settings, params, gradients, state, lr=rate)
    return {name: value.detach() for name, value in params.items()}
