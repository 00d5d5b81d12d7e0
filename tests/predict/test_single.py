"""The moments of one weight sample in a compiled call against their definitions."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest
import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances, Outputs
from bayrace.core.prediction import Prediction
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import Lambdas, NoiseSpec
from bayrace.models.noise import noise as noise_of
from bayrace.models.race.network import Race
from bayrace.predict.moments import mixture
from bayrace.predict.single import Noise, single
from bayrace.testing import graph_of, random_frame, small_spec

ELEMENTS = (1, 6, 8)
REAL = torch.float64
ORIGIN = torch.tensor([-13.6, -1030.5, -2040.25], dtype=REAL)
LAMBDAS = Lambdas(3.0, 50.0, 1.0)
NOISES = {
    "none": NoiseSpec("none", "extensive", "equivariant", stress=False),
    "energy": NoiseSpec("energy", "extensive", "equivariant", stress=False),
    "joint": NoiseSpec("joint", "extensive", "equivariant", stress=False),
    "cholesky": NoiseSpec("joint", "extensive", "cholesky", stress=False),
}


def case(spec: NoiseSpec, dtype: torch.dtype = REAL) -> tuple[GraphBatch, Outputs]:
    """Elements in mixed order, so that the files' order is not the batch's."""
    model = Race(small_spec(ELEMENTS, noise=spec), kernel="plain")
    batch = graph_of(model, *(random_frame(ELEMENTS, n, seed=n) for n in (7, 1, 4)))
    batch = batch.to(dtype=dtype)
    with torch.no_grad():
        return batch, evaluate(model, model.init(1, dtype=dtype), batch)


def spread_of(batch: GraphBatch, **changes: Any) -> EpistemicVariances:
    generator = torch.Generator().manual_seed(0)
    energy, forces, atomic = (
        torch.rand(*shape, generator=generator, dtype=REAL)
        for shape in ((batch.n_structures,), (batch.n_atoms, 3, 3), (batch.n_atoms,))
    )
    return EpistemicVariances(energy, forces, None, atomic)._replace(**changes)


def defined(
    batch: GraphBatch, outputs: Outputs, noise: Noise | None, spread: EpistemicVariances | None
) -> Prediction:
    """By PyTorch."""
    values = {"atomic": outputs.atomic_energy, "forces": outputs.forces}
    if noise is not None:
        found = noise_of(outputs, batch, noise.spec, noise.lambdas)
        named = found._asdict().items()
        values |= {f"{name}_noise": value for name, value in named if value is not None}
    rows = {name: value.double().unsqueeze(0) for name, value in values.items()}
    return mixture(rows, batch, ORIGIN, spread=spread)


def same(found: Prediction | None, expected: Prediction, tolerance: float) -> None:
    assert found is not None
    assert found.stress is expected.stress is None
    parts = [astuple(each)[:3] for each in (found.energy, found.forces)]
    others = [astuple(each)[:3] for each in (expected.energy, expected.forces)]
    pairs = [pair for one, other in zip(parts, others, strict=True) for pair in zip(one, other)]  # noqa: B905
    pairs.append((found.atomic_energy, expected.atomic_energy))
    pairs.append((found.structure_index, expected.structure_index))
    assert (found.atomic_epistemic is None) == (expected.atomic_epistemic is None)
    if found.atomic_epistemic is not None:
        pairs.append((found.atomic_epistemic, expected.atomic_epistemic))
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=tolerance, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [REAL, torch.float32])
@pytest.mark.parametrize("name", list(NOISES))
@pytest.mark.parametrize("closed", [False, True])
def test_compiled_is_defined(name: str, dtype: torch.dtype, closed: bool) -> None:
    batch, outputs = case(NOISES[name], dtype)
    spread = spread_of(batch) if closed else None
    for noise in (None, Noise(NOISES[name], LAMBDAS)):
        found = single(outputs, batch, ORIGIN, noise, spread)
        tolerance = 1e-14 if dtype == REAL else 1e-6  # λ divides before numbers are doubled
        same(found, defined(batch, outputs, noise, spread), tolerance)


@pytest.mark.parametrize("without", ["forces", "atomic"])
def test_what_a_closed_form_does_not_know(without: str) -> None:
    batch, outputs = case(NOISES["joint"])
    spread, noise = spread_of(batch, **{without: None}), Noise(NOISES["joint"], LAMBDAS)
    found = single(outputs, batch, ORIGIN, noise, spread)
    same(found, defined(batch, outputs, noise, spread), 1e-14)
    assert found is not None
    assert bool(found.forces.epistemic.isnan().all()) == (without == "forces")


def test_what_is_no_number_stays_none() -> None:
    batch, outputs = case(NOISES["joint"])
    for name in ("atomic_energy", "forces", "energy_head"):
        value = getattr(outputs, name).clone()
        value[2] = torch.nan
        broken, noise = outputs._replace(**{name: value}), Noise(NOISES["joint"], LAMBDAS)
        same(single(broken, batch, ORIGIN, noise, None), defined(batch, broken, noise, None), 1e-14)


def test_log_variances_keep_their_limits() -> None:
    batch, outputs = case(NOISES["energy"])
    assert outputs.energy_head is not None
    far = outputs._replace(energy_head=outputs.energy_head * 1e3)
    noise = Noise(NOISES["energy"], LAMBDAS)
    same(single(far, batch, ORIGIN, noise, None), defined(batch, far, noise, None), 1e-14)


def test_others_take_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stress, members that differ in references, means over atoms, and no compiler."""
    batch, outputs = case(NOISES["joint"])
    noise = Noise(NOISES["joint"], LAMBDAS)
    mean = Noise(NoiseSpec("joint", "mean_log", "equivariant", stress=False), LAMBDAS)
    stressed = outputs._replace(stress=torch.zeros(3, 6, dtype=REAL))
    assert single(outputs, batch, ORIGIN, noise, None) is not None
    assert single(stressed, batch, ORIGIN, noise, None) is None
    assert single(outputs, batch, ORIGIN.unsqueeze(0), noise, None) is None
    assert single(outputs, batch, ORIGIN, mean, None) is None
    monkeypatch.setenv("BAYRACE_KERNEL", "plain")
    assert single(outputs, batch, ORIGIN, noise, None) is None
