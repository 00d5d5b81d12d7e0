"""Energy shifts: known answers, where they act, and a real network that needs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayrace.config import make_config
from bayrace.config.build import likelihoods, train_settings
from bayrace.core.outputs import Params
from bayrace.core.protocols import Posterior, Shifted
from bayrace.data.dataset import Dataset
from bayrace.data.embedded import embedded, embedded_frames
from bayrace.data.frame import Frame
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas
from bayrace.models.pair import PairModel
from bayrace.models.race.network import Race
from bayrace.posterior.finish import Finishing, finish
from bayrace.posterior.gaussian.low_rank import Collector, Swag
from bayrace.posterior.ivon import Ivon
from bayrace.posterior.shifts import SEED, Shifts, with_shifts
from bayrace.potential.potential import Potential
from bayrace.predict.predict import Predictive, predict
from bayrace.simulate.bias import energy_spread
from bayrace.testing.examples import EXAMPLES
from bayrace.testing.structures import random_frame, small_spec
from bayrace.train.callbacks import Callbacks
from bayrace.train.loop import fit
from bayrace.train.task import Task
from bayrace.workflow import train as run
from bayrace.workflow.fit import Prepared, fit_task

ELEMENTS = (1, 8)
REFERENCES = {1: -3.0, 8: -7.0}
PAIRS = PairModel(elements=ELEMENTS, cutoff=4.0, functions=2)


def mixed_frames(count: int) -> list[Frame]:
    """Molecules of many compositions with energies of any kind."""
    random = np.random.default_rng(0)
    return [
        replace(random_frame(ELEMENTS, 3 + seed % 4, seed=seed), energy=float(random.normal(0, 5)))
        for seed in range(count)
    ]


def as_data(frames: list[Frame], cutoff: float = 4.0) -> Dataset:
    return Dataset(frames, elements=ELEMENTS, cutoff=cutoff, references=REFERENCES)


def gaussian(model: PairModel | Race, kind: str) -> Swag | Ivon:
    params = model.init(0, dtype=torch.float64)
    made = EXAMPLES[kind](model, params)  # type: ignore[arg-type]
    assert isinstance(made, Swag | Ivon)
    return made


@pytest.mark.parametrize("kind", ["swag", "ivon"])
def test_shifts_leave_residuals_that_no_element_explains(kind: str) -> None:
    """The normal equations of least squares: residuals are orthogonal to the composition."""
    frames = mixed_frames(12)
    data = as_data(frames)
    posterior = with_shifts(gaussian(PAIRS, kind), PAIRS, data)
    batch, labels = data.batch(range(12), dtype=torch.float64)
    counts = torch.tensor([[(f.numbers == z).sum() for z in ELEMENTS] for f in frames]).double()
    weights = posterior.draw(posterior.samples, seed=SEED)
    shifts = posterior.shifts(posterior.samples, seed=SEED)
    assert shifts is not None
    for index in range(posterior.samples):
        energy = PAIRS.energy({k: v[index] for k, v in weights.items()}, batch).energy
        before = labels.energy - energy
        after = before - counts @ shifts[index]
        assert float((counts.T @ before).abs().max()) > 1.0
        assert float((counts.T @ after).abs().max()) < 1e-9
    assert posterior.energy_shifts is not None
    mean = PAIRS.energy(posterior.mean, batch).energy + counts @ posterior.energy_shifts.mean
    assert float((counts.T @ (labels.energy - mean)).abs().max()) < 1e-9


def test_of_one_composition_the_norm_is_least() -> None:
    """Elements in the proportion 2 : 1 share a shift so; frames without energies do not count."""
    frame = random_frame(ELEMENTS, 3, seed=0)
    frames = [
        replace(frame, numbers=np.array([1, 1, 8]), energy=energy) for energy in (1.0, 2.0, None)
    ]
    still = Collector.empty(2).add({"weights": torch.zeros(3, 2)})
    flat = still.add({"weights": torch.zeros(3, 2)}).posterior(
        scaling="maddox", samples=2, dtype=torch.float64
    )
    shifts = with_shifts(flat, PAIRS, as_data(frames)).energy_shifts
    assert shifts is not None
    residual = 1.5 + 2 * 3.0 + 7.0
    torch.testing.assert_close(shifts.mean, torch.tensor([2.0, 1.0]).double() * residual / 5)
    torch.testing.assert_close(shifts.samples, shifts.mean.expand(2, 2))


def potential_of(model: Race, posterior: Posterior) -> Potential:
    return Potential(
        spec=model.spec,
        posterior=posterior,
        references=REFERENCES,
        lambdas=Lambdas(1.0, 1.0, 0.0),
        statistics={},
        config={},
        fingerprint="",
    )


@pytest.mark.parametrize("kind", ["swag", "ivon"])
def test_predictions_have_shifted_energies_and_the_same_forces(kind: str, tmp_path: Path) -> None:
    model = Race(small_spec(ELEMENTS))
    bare = gaussian(model, kind)
    random = torch.Generator().manual_seed(0)
    samples = torch.randn(bare.samples, 2, generator=random, dtype=torch.float64)
    shifted = bare.shifted(Shifts(torch.zeros(2).double(), samples))
    assert isinstance(shifted, Shifted)
    frames = [random_frame(ELEMENTS, n, seed=n, cell=5.0 * np.eye(3)) for n in (3, 5)]
    without = potential_of(model, bare).predict(frames, stress=True)
    path = tmp_path / "shifted.bayrace"
    potential_of(model, shifted).save(path)
    loaded = Potential.load(path, dtype="float32").to(dtype="float64")
    assert torch.equal(loaded.origins, potential_of(model, shifted).origins)  # never rounded
    found = potential_of(model, shifted).predict(frames, stress=True)
    numbers = torch.from_numpy(np.concatenate([frame.numbers for frame in frames]))
    moved = samples.mean(0)[(numbers == 8).long()]
    torch.testing.assert_close(found.atomic_energy, without.atomic_energy + moved)
    torch.testing.assert_close(
        found.energy.mean,
        torch.zeros(2).double().index_add(0, found.structure_index, found.atomic_energy),
    )
    assert torch.equal(found.forces.mean, without.forces.mean)
    assert torch.equal(found.forces.epistemic, without.forces.epistemic)
    assert found.stress is not None
    assert without.stress is not None
    assert torch.equal(found.stress.total, without.stress.total)
    members = members_energies(potential_of(model, shifted), frames)
    torch.testing.assert_close(found.energy.epistemic, members.var(0, correction=0))
    assert not torch.allclose(found.energy.epistemic, without.energy.epistemic, rtol=0.1)


def members_energies(potential: Potential, frames: list[Frame]) -> Tensor:
    """Of each sample by itself, (M, S) eV."""
    graphs = Dataset(
        frames,
        elements=potential.elements,
        cutoff=potential.model.cutoff,
        references=potential.references,
    )
    batch, _ = graphs.batch(range(len(frames)), dtype=potential.dtype)
    origins = potential.origins.expand(potential.posterior.samples, -1)
    return torch.stack(
        [
            predict(
                Predictive(
                    potential.model,
                    {name: value[m : m + 1] for name, value in potential.members.items()},
                    origins[m],
                    potential.lambdas,
                ),
                batch,
                uncertainty="none",
            ).energy.mean
            for m in range(potential.posterior.samples)
        ]
    )


def test_a_bias_follows_the_shifted_energies() -> None:
    model = Race(small_spec(ELEMENTS))
    frame = random_frame(ELEMENTS, 4, seed=1)
    bare = gaussian(model, "ivon")
    steps = torch.arange(2 * bare.samples, dtype=torch.float64).reshape(-1, 2)
    shifts = Shifts(torch.zeros(2).double(), steps)
    potential = potential_of(model, bare.shifted(shifts))
    batch, _ = as_data([frame], model.cutoff).batch([0], dtype=potential.dtype)
    expected = potential.predict([frame]).energy.epistemic.sqrt()
    assert energy_spread(potential, batch).std == pytest.approx(float(expected), rel=1e-6)


def test_shifts_of_other_samples_are_refused_and_older_files_have_none() -> None:
    bare = gaussian(PAIRS, "swag")
    posterior = with_shifts(bare, PAIRS, as_data(mixed_frames(4)))
    known = posterior.shifts(posterior.samples, seed=SEED)
    assert known is not None
    fewer = posterior.shifts(3, seed=SEED)
    assert fewer is not None
    assert torch.equal(fewer, known[:3])
    with pytest.raises(ValueError, match=r"samples=8, seed=1: energy shifts are known of the fir"):
        posterior.shifts(8, seed=1)
    with pytest.raises(ValueError, match="known of the first 8 samples of seed 0"):
        posterior.shifts(9, seed=SEED)
    assert posterior.draw(9, seed=1)["weights"].shape[0] == 9  # weights are for everyone
    old = Swag.restore(bare.tensors(), bare.options())
    assert old.shifts(8, seed=SEED) is None
    again = Swag.restore(posterior.tensors(), posterior.options()).to(dtype=torch.float32)
    assert again.energy_shifts is not None
    assert again.energy_shifts.samples.dtype == torch.float64
    assert torch.equal(again.energy_shifts.samples, known)


FEW: dict[str, Any] = {
    "seed": 0,
    "data": {
        "train": f"{embedded('ethanol-train')}@:160",
        "valid": f"{embedded('ethanol-valid')}@:20",
    },
    "model": {
        "preset": "tiny",
        "layers": 1,
        "hidden": "8x0e+8x1o+8x2e",
        "radial_hidden": [16],
    },
    "loss": {"refit_epochs": 3},
    "train": {"max_epochs": 4, "batch_size": 5},
    "posterior": {
        "swag": {"epochs": 6, "burn_in": 2, "samples": 8},
        "ivon": {"lr": 0.005, "hess_init": 100.0, "samples": 8, "fisher": 200},
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Params]:
    """A small network after a few hundred steps on ethanol."""
    config = make_config(FEW)
    ready = run.prepare(config)
    result = fit(
        Task(
            ready.model,
            likelihoods(config.loss, ready.lambdas),
            ready.train,
            ready.valid,
            train_settings(config),
            tmp_path_factory.mktemp("base"),
        )
    )
    return ready, result.params


@pytest.mark.parametrize("kind", ["swag", "ivon"])
def test_samples_of_a_real_network_have_no_common_offset(
    kind: str, trained: tuple[Prepared, Params], tmp_path: Path
) -> None:
    """Over unseen frames, a sample's mean energy differs by less than 0.2 of the epistemic σ_E.

    Without shifts the offset is nearly all there is of σ_E. Noise heads do not vary, and are not
    those that training left.
    """
    ready, params = trained
    config = make_config(FEW, [f"posterior.kind={kind}"])
    task = fit_task(config, ready, params, folder=tmp_path / kind, calls=Callbacks())
    posterior, _ = config.posterior.method.fit(task)
    assert isinstance(posterior, Swag | Ivon)
    potential = replace(potential_of(ready.model, posterior), references=ready.train.references)
    frames = embedded_frames("ethanol-test")
    assert offset(potential, frames) < 0.2
    assert offset(replace(potential, posterior=posterior.shifted(None)), frames) > 0.8
    masks = ready.model.noise_weights(posterior.mean)
    drawn = posterior.draw(3, seed=1)
    for name, value in drawn.items():
        fixed = masks.get(name, torch.zeros_like(value[0])) == 1
        assert torch.equal(value[:, fixed], posterior.mean[name][fixed].expand(3, -1))
        assert bool((value.std(0)[~fixed] > 0).any()) or bool(fixed.all())


def offset(potential: Potential, frames: list[Frame]) -> float:
    """Root mean square over samples of the mean over frames, in units of the epistemic σ_E."""
    energies = members_energies(potential, frames)
    deviations = energies - energies.mean(0)
    common = deviations.mean(1).square().mean().sqrt()
    return float(common / deviations.square().mean().sqrt())


def test_noise_heads_are_refitted_at_the_mean(trained: tuple[Prepared, Params]) -> None:
    """Heads that were spoilt on purpose score on validation data as well as fresh ones do."""
    ready, params = trained
    config = make_config(FEW)
    masks = ready.model.noise_weights(params)
    spoilt = {k: v + 2.0 * masks[k] if k in masks else v for k, v in params.items()}
    hessian = {k: torch.full_like(v, 1e6) for k, v in params.items()}
    last = likelihoods(config.loss, ready.lambdas)(99)

    def score(posterior: Ivon) -> float:
        shift = posterior.energy_shifts
        assert shift is not None
        moved = {
            z: e + float(shift.mean[i]) for i, (z, e) in enumerate(ready.train.references.items())
        }
        data = ready.valid.with_references(moved)
        batch, labels = data.batch(range(len(data)), dtype=torch.float32)
        outputs = evaluate(ready.model, posterior.mean, batch)
        return float(last.score().loss(outputs, labels, batch).total)

    def finished(epochs: int) -> Ivon:
        bare = Ivon(spoilt, hessian, ess=1e5, weight_decay=1e-4, samples=2)
        how = Finishing(epochs, train_settings(config))
        return finish(bare, ready.model, last, ready.train, ready.valid, how)

    kept, refitted = finished(0), finished(3)
    assert score(refitted) < score(kept) - 1.0
    for name, value in refitted.mean.items():
        free = masks.get(name, torch.zeros_like(value)) == 0
        assert torch.equal(value[free], spoilt[name][free])
