"""Initial weights that are scaled to the data."""

from __future__ import annotations

import pytest
import torch

from bayrace.config import make_config
from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Params
from bayrace.data.embedded import embedded
from bayrace.models.derivatives import evaluate
from bayrace.models.race.network import Race
from bayrace.workflow.prepare import Prepared
from bayrace.workflow.train import prepare

DATA = {"train": f"{embedded('ethanol-train')}@:30", "valid": 5}


@pytest.fixture(scope="module")
def ready() -> Prepared:
    """The default network for ethanol, drawn."""
    return prepare(make_config({"data": DATA, "model": {"start": "random"}}))


def largest_force(model: Race, params: Params, batch: GraphBatch) -> float:
    return float(evaluate(model, params, batch).forces.detach().square().mean().sqrt())


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_draws_that_would_diverge_start_small(seed: int, ready: Prepared) -> None:
    """The three draws among the first eight whose forces begin above 50 eV/Å."""
    model = ready.model
    assert isinstance(model, Race)
    seen, _ = ready.train.batch(range(20), dtype=torch.float64)
    other, _ = ready.train.batch(range(20, 25), dtype=torch.float64)
    drawn = model.init(seed, dtype=torch.float64)
    assert largest_force(model, drawn, other) > 50
    assert largest_force(model, model.rescaled(drawn, seen), other) < 20


def test_only_sizes_change(ready: Prepared) -> None:
    """Every matrix is the drawn one times a positive number, and twice is as once."""
    model = ready.model
    assert isinstance(model, Race)
    batch, _ = ready.train.batch(range(20), dtype=torch.float64)
    drawn = model.init(1, dtype=torch.float64)
    once = model.rescaled(drawn, batch)
    assert list(once) == list(drawn)
    for name, value in once.items():
        ratio = value / drawn[name]
        torch.testing.assert_close(ratio, ratio.flatten()[0].expand_as(ratio))
        assert 0 < ratio.flatten()[0] <= 1
    for name, value in model.rescaled(once, batch).items():
        torch.testing.assert_close(value, once[name], rtol=1e-6, atol=1e-12)


def test_networks_of_the_paper_start_as_drawn() -> None:
    paper = prepare(make_config({"data": DATA, "model": {"self_contraction": False}})).model
    assert isinstance(paper, Race)
    params = paper.init(0)
    assert paper.rescaled(params, None) is params  # type: ignore[arg-type]
