"""Large structures in parts give what they give as a whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from bayrace.core.graph import GraphBatch
from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import bare_frame
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.network import Race
from bayrace.potential.potential import Potential
from bayrace.predict import parts
from bayrace.predict.parts import evaluate_large
from bayrace.testing import small_spec

ELEMENTS = (1, 6, 8)
SKEWED = np.array([[27.0, 0.0, 0.0], [6.0, 26.0, 0.0], [-4.0, 5.0, -28.0]])  # and left-handed


def large(pbc: tuple[bool, bool, bool]) -> GraphBatch:
    """Seven hundred atoms in some disorder, some of them outside the cell."""
    random = np.random.default_rng(3)
    grid = np.stack(np.meshgrid(*[np.arange(9)] * 3, indexing="ij"), -1).reshape(-1, 3) / 9
    positions = (grid + random.integers(-1, 2, grid.shape) * np.array(pbc)) @ SKEWED
    positions += random.normal(0, 0.2, positions.shape)
    numbers = random.choice(ELEMENTS, len(grid))
    frame = bare_frame(numbers, positions, SKEWED, np.array(pbc), source="large")
    graph = build_graph(frame, elements=ELEMENTS, cutoff=3.5)
    return collate([graph], elements_count=3, dtype=torch.float64)


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, False)])
def test_parts_add_up_to_the_whole(pbc: tuple[bool, bool, bool]) -> None:
    noise = NoiseSpec("joint", "extensive", "equivariant", stress=True)
    model = Race(small_spec(ELEMENTS, cutoff=3.5, mean_neighbours=8.0, noise=noise, layers=2))
    params, batch = model.init(0, dtype=torch.float64), large(pbc)
    at_once = batch.reverse.shape[0] // 4
    whole = evaluate(model, params, batch, stress=True)
    found = evaluate_large(model, params, batch, stress=True, at_once=at_once)
    for name, value in whole._asdict().items():
        torch.testing.assert_close(
            getattr(found, name), value, rtol=1e-9, atol=1e-9, equal_nan=True, msg=name
        )
    blocks = list(parts._blocks(parts._wrapped(batch), batch.n_atoms // 8))
    assert torch.cat(blocks).sort().values.tolist() == list(range(batch.n_atoms))
    part, _ = parts._part(batch, blocks[0], model.hops)
    assert part.reverse.shape[0] < 0.7 * batch.reverse.shape[0]  # so that there were parts


def test_predictions_use_parts(
    make_potential: Callable[..., Potential], monkeypatch: pytest.MonkeyPatch
) -> None:
    potential, batch = make_potential(cutoff=3.5), large((True, True, True))
    whole = potential.predict_batch(batch, stress=True)
    monkeypatch.setattr(parts, "AT_ONCE", batch.reverse.shape[0] // 4)
    seen: list[int] = []
    monkeypatch.setattr(parts, "_part", lambda *a, cut=parts._part: seen.append(1) or cut(*a))
    found = potential.predict_batch(batch, stress=True)
    assert len(seen) > 2
    torch.testing.assert_close(found.energy.mean, whole.energy.mean)
    torch.testing.assert_close(found.forces.total, whole.forces.total)
