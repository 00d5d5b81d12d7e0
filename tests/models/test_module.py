"""Any torch module as a model: derivatives, symmetries, its last layer, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayrace.core.protocols import Foldable, LinearModel, Model, NoisyModel, Shaped, SideBySide
from bayrace.models.derivatives import evaluate
from bayrace.models.module import ModuleModel, check_linear
from bayrace.posterior.gaussian.last_layer import feature_derivatives
from bayrace.testing import graph_of, random_frame
from bayrace.testing.models import check_derivatives, check_symmetries
from bayrace.testing.modules import Tiny, TinySpec

ELEMENTS = (1, 8)
MODEL = TinySpec(ELEMENTS, 4.0, seed=3).build()
PARAMS = MODEL.init(0, dtype=torch.float64)
FRAME = random_frame(ELEMENTS, 8, seed=1, apart=0.9, cell=5 * np.eye(3))


def whole(**changes: object) -> ModuleModel:
    return ModuleModel(Tiny(2, 4.0, seed=3), elements=ELEMENTS, cutoff=4.0, **changes)


def test_it_offers_what_it_has() -> None:
    for kind in (Model, NoisyModel, LinearModel, Shaped):
        assert isinstance(MODEL, kind)
    assert not isinstance(MODEL, Foldable | SideBySide)
    assert set(PARAMS) == {"out.weight"}
    assert set(whole().shapes) == {name for name, _ in Tiny(2, 4.0, seed=3).named_parameters()}


def test_symmetries_and_derivatives() -> None:
    check_symmetries(MODEL, PARAMS, FRAME)
    check_derivatives(MODEL, PARAMS, FRAME)


def test_the_module_and_the_batch_stay_as_they_were() -> None:
    batch = graph_of(MODEL, FRAME)
    evaluate(MODEL, PARAMS, batch, stress=True)
    assert not batch.positions.requires_grad
    changed = {name: value + 1 for name, value in PARAMS.items()}
    before = evaluate(MODEL, PARAMS, batch).energy
    assert not torch.allclose(evaluate(MODEL, changed, batch).energy, before)
    torch.testing.assert_close(evaluate(MODEL, PARAMS, batch).energy, before, rtol=0, atol=0)


def test_members_by_vmap_are_those_one_by_one() -> None:
    model = whole(last=["out.weight"], every_weight=True)
    batch = graph_of(model, FRAME)
    first = model.init(0, dtype=torch.float64)
    members = [first, {name: 1.1 * value for name, value in first.items()}]
    stacked = {name: torch.stack([each[name] for each in members]) for name in first}
    together = torch.func.vmap(lambda params: evaluate(model, params, batch).forces)(stacked)
    for forces, params in zip(together, members, strict=True):
        torch.testing.assert_close(forces, evaluate(model, params, batch).forces)


def test_features_are_derivatives_by_the_last_layer() -> None:
    batch = graph_of(MODEL, FRAME)
    assert check_linear(MODEL, PARAMS, batch, tolerance=1e-10) < 1e-10
    slopes = feature_derivatives(MODEL, PARAMS, batch)
    forces = torch.einsum("kni,k->ni", slopes.forces, MODEL.last_layer(PARAMS))
    torch.testing.assert_close(forces, evaluate(MODEL, PARAMS, batch).forces)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            ModuleModel(
                Tiny(2, 4.0, seed=3, told=1.01), elements=ELEMENTS, cutoff=4.0, last=["out.weight"]
            ),
            "not linear in out.weight",
        ),
        (whole(last=["hidden.bias"]), "not linear in hidden.bias"),
        (whole(last=["charge"]), "10 features, and its last layer has 2 weights"),
        (whole(), "tells no features"),
    ],
)
def test_a_last_layer_that_is_none_is_found_out(model: ModuleModel, message: str) -> None:
    params = model.init(0, dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        check_linear(model, params, graph_of(model, FRAME))


def test_unknown_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no parameters \['wrong'\]"):
        whole(last=["wrong"])
    with pytest.raises(ValueError, match="does not name a last layer"):
        whole().last_layer(whole().init(0))
