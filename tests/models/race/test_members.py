"""Members side by side on copies of a batch against each member alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bayrace.core.outputs import Params
from bayrace.data.batch import repeated
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.network import Race
from bayrace.testing import graph_of, random_frame, small_spec

ELEMENTS = (1, 6, 8)
NOISE = NoiseSpec("joint", "extensive", "equivariant", stress=True)
CHOLESKY = NoiseSpec("joint", "extensive", "cholesky", stress=True)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"pair_radial": True, "gate": True},
    {"self_contraction": True},
    {"gate": True},
    {"hidden": "8x0e+4x1o+4x2e"},
    {"noise": CHOLESKY},
    {"shift": (0.1, -0.2, 0.3)},
]


def folded(model: Race, count: int) -> Params:
    members = [model.fold(model.init(seed, dtype=torch.float64)) for seed in range(count)]
    return {name: torch.stack([each[name] for each in members]) for name in members[0]}


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_side_by_side_is_each_alone(changes: dict[str, Any]) -> None:
    model = Race(small_spec(ELEMENTS, **({"noise": NOISE, "radial_knots": 16} | changes)))
    members = folded(model, 3)
    assert model.side_by_side(members)
    frames = [
        random_frame(ELEMENTS, 7, seed=1),
        random_frame((1, 8), 5, seed=2, cell=np.eye(3) * 4.0),
        random_frame((6,), 1, seed=3),  # an atom without neighbours
    ]
    batch = graph_of(model, *frames)
    together = evaluate(model, members, repeated(batch, 3), stress=True)
    alone = [
        evaluate(model, {name: value[m] for name, value in members.items()}, batch, stress=True)
        for m in range(3)
    ]
    present = {name: value for name, value in together._asdict().items() if value is not None}
    assert set(present) >= {"energy", "forces", "stress"}
    for name, value in present.items():
        expected = torch.cat([getattr(each, name) for each in alone])
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10, equal_nan=True)


def test_copies_are_batches_like_any_other() -> None:
    """The invariants of a batch hold, and copies of a graph are the graph of copies."""
    model = Race(small_spec(ELEMENTS))
    frames = [random_frame(ELEMENTS, 6, seed=4), random_frame((1,), 3, seed=5)]
    batch = graph_of(model, *frames)
    copies = repeated(batch, 3)
    assert (copies.species.diff() >= 0).all()
    assert (copies.edges[0].diff() >= 0).all()
    assert torch.equal(copies.reverse[copies.reverse], torch.arange(len(copies.reverse)))
    assert torch.equal(copies.edges[0], copies.edges[1][copies.reverse])
    receivers = torch.repeat_interleave(torch.arange(copies.n_atoms), copies.first_edge.diff())
    assert torch.equal(receivers, copies.edges[0])
    assert torch.equal(copies.pair[copies.pair_edges[0]], torch.arange(copies.pair_edges.shape[1]))
    assert torch.equal(
        copies.structure_index[copies.file_order],
        torch.repeat_interleave(torch.arange(6), copies.atom_counts()),
    )
    assert sum(copies.species_counts) == copies.n_atoms == 3 * batch.n_atoms


@pytest.mark.parametrize("changes", [{"self_contraction": True}, {"gate": True}], ids=str)
def test_compiled_networks_need_no_copies_of_edges(changes: dict[str, Any]) -> None:
    spec = small_spec(ELEMENTS, noise=NOISE, radial_knots=16, **changes)
    fast, plain = Race(spec, kernel="fused"), Race(spec, kernel="plain")
    members = folded(fast, 3)
    batch = graph_of(fast, random_frame(ELEMENTS, 7, seed=1), random_frame((1, 8), 5, seed=2))
    light = repeated(batch, 3, edges=False)
    with torch.no_grad():
        found = evaluate(fast, members, light)
        expected = evaluate(plain, members, repeated(batch, 3))
        with pytest.raises(ValueError, match="repeat the edges too"):
            evaluate(plain, members, light)
    for name in ("energy", "atomic_energy", "forces", "energy_head", "forces_head"):
        one, other = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_some_members_are_not_taken_for_all() -> None:
    """Slices of stacked weights begin at the same address, and their matrices are kept."""
    spec = small_spec(ELEMENTS, noise=NOISE, radial_knots=16)
    model = Race(spec, kernel="fused")
    members, batch = folded(model, 4), graph_of(model, random_frame(ELEMENTS, 7, seed=1))
    with torch.no_grad():
        alone = [
            evaluate(model, {name: value[m] for name, value in members.items()}, batch).forces
            for m in range(4)
        ]
        for count in (4, 2, 3):
            some = {name: value[:count] for name, value in members.items()}
            found = evaluate(model, some, repeated(batch, count, edges=False)).forces
            torch.testing.assert_close(found, torch.cat(alone[:count]), rtol=1e-12, atol=1e-12)


def test_networks_without_splines_are_not_taken() -> None:
    model = Race(small_spec(ELEMENTS, radial_knots=0))
    assert not model.side_by_side(folded(model, 2))
