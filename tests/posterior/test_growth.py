"""Variances in one compiled call against their definition by PyTorch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import Outputs
from bayrace.models.derivatives import evaluate
from bayrace.models.race.network import Race
from bayrace.nn.lengths import Lengths
from bayrace.posterior.growth import Growth, Law
from bayrace.testing import graph_of, random_frame, small_spec

ELEMENTS = (1, 6, 8)
REAL = torch.float64


def case(dtype: torch.dtype) -> tuple[GraphBatch, Outputs]:
    """Three structures, one of them without hydrogen, and the features of a network."""
    model = Race(small_spec(ELEMENTS))
    frames = (
        random_frame(ELEMENTS, 9, seed=1),
        random_frame((6, 8), 5, seed=2),
        random_frame((8,), 1, seed=3),
    )
    batch = graph_of(model, *frames).to(dtype=dtype)
    return batch, evaluate(model, model.init(0, dtype=dtype), batch, forces=False)


def growth() -> Growth:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, 16, 16, generator=generator, dtype=REAL)
    centres = torch.randn(3, 16, generator=generator, dtype=REAL)
    factor = torch.randn(1, 16, 11, generator=generator, dtype=REAL)
    scale = torch.tensor([0.1, 0.2, 0.4], dtype=REAL)
    laws = Law(1.4, 500.0), Law(0.85, 20.0)
    return Growth(Lengths(matrices, centres), Lengths(factor), scale, *laws)


@pytest.mark.parametrize("dtype", [torch.float32, REAL])
@pytest.mark.parametrize("forces", [True, False])
@pytest.mark.parametrize("without", [{}, {"rigidity": None}, {"forces_scale": None}])
def test_compiled_is_plain(dtype: torch.dtype, forces: bool, without: dict[str, None]) -> None:
    batch, outputs = case(dtype)
    made = replace(growth(), **without)
    assert made.distance.compiled(outputs.energy.new_empty(0).to(dtype))
    found = made(batch, outputs, forces=forces)
    expected = made.plain(batch, outputs, forces=forces)
    assert (found.forces is None) == (not forces or "forces_scale" in without)
    assert (found.atomic is None) == ("rigidity" in without)
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=0, equal_nan=True)


def test_atoms_by_hand() -> None:
    """One atom: m of its element, its variance by the definition, and the structure is the atom."""
    model = Race(small_spec(ELEMENTS))
    batch = graph_of(model, random_frame((6,), 1, seed=1))
    outputs = evaluate(model, model.init(0, dtype=REAL), batch, forces=False)
    assert outputs.last_features is not None
    made, feature = growth(), outputs.last_features[0]
    assert made.distance.centres is not None
    assert made.rigidity is not None
    moved = (feature - made.distance.centres[1]) @ made.distance.matrices[1]
    m, r = moved @ moved, (feature @ made.rigidity.matrices[0]).square().sum()
    found = made(batch, outputs, forces=True)
    energy = r * (m / (1 + m / 20)) ** 0.85
    torch.testing.assert_close(found.energy, energy.reshape(1), rtol=1e-12, atol=0)
    assert found.forces is not None
    expected = 0.2 * (m / (1 + m / 500)) ** 1.4 * torch.eye(3, dtype=REAL).unsqueeze(0)
    torch.testing.assert_close(found.forces, expected, rtol=1e-12, atol=0)


def test_a_law_without_ceiling_is_a_power() -> None:
    far = torch.tensor([0.5, 1.0, 1e5], dtype=REAL)
    torch.testing.assert_close(Law(1.4)(far), far**1.4, rtol=1e-14, atol=0)
    assert float(Law(1.4, 1e4)(far[-1:] * 1e9)) == pytest.approx(1e4**1.4, rel=1e-6)


def test_shares_take_the_definition() -> None:
    """Where the pooling is not a sum, atoms add something else than their features."""
    batch, outputs = case(REAL)
    share = torch.linspace(0.5, 1.5, batch.n_atoms, dtype=REAL)
    shared = outputs._replace(share=share)
    found, expected = (ask(batch, shared, forces=True).energy for ask in (growth(), growth().plain))
    assert torch.equal(found, expected)
    assert not torch.allclose(found, growth()(batch, outputs, forces=True).energy)
