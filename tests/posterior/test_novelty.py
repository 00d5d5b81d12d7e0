"""How unlike the training structures whole structures are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.posterior.test_distance import ELEMENTS, MODEL, bare, frames
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.protocols import Novel
from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import Frame
from bayrace.posterior.latent import Seen, whitened
from bayrace.posterior.novelty import REGULARISATION, Novelty, mean_moments
from bayrace.potential.potential import Potential
from bayrace.testing import random_frame

D = 5


def batch_of(chosen: list[Frame]) -> GraphBatch:
    graphs = [build_graph(frame, elements=ELEMENTS, cutoff=3.0) for frame in chosen]
    return collate(graphs, elements_count=len(ELEMENTS), dtype=torch.float64)


def drawn(batch: GraphBatch, seed: int, shift: float = 0.0) -> Tensor:
    """Features of independent atoms, of both elements around means of their own, (N, D)."""
    random = torch.Generator().manual_seed(seed)
    normal = torch.randn(batch.n_atoms, D, generator=random, dtype=torch.float64)
    return normal * torch.linspace(0.5, 2, D) + 3.0 * batch.species[:, None] + shift


def seen_of(batch: GraphBatch, hidden: Tensor) -> Seen:
    parts = torch.split(hidden, list(batch.species_counts))
    return Seen(
        torch.tensor(batch.species_counts).double(),
        torch.stack([part.sum(0) for part in parts]),
        torch.stack([part.T @ part for part in parts]),
        hidden.T @ hidden,
        mean_moments(batch, hidden),
    )


def fitted(seen: Seen) -> Novelty:
    centre, whitening = whitened(seen, 1e-6)
    return Novelty.fitted(seen.means, centre, whitening, whitened(seen, REGULARISATION)[1])


TRAIN = batch_of([random_frame(ELEMENTS, 12, seed=k, apart=0.9) for k in range(40)])
HIDDEN = drawn(TRAIN, seed=0)
NOVELTY = fitted(seen_of(TRAIN, HIDDEN))


def test_is_one_over_the_training_structures() -> None:
    found = NOVELTY(TRAIN, HIDDEN)
    assert found.square().mean().item() == pytest.approx(1.0, rel=1e-9)


def test_moments_of_batches_add_up() -> None:
    """What several batches say together is what one says of all."""
    chosen = [random_frame(ELEMENTS, 12, seed=k, apart=0.9) for k in range(40)]
    one, other = batch_of(chosen[:13]), batch_of(chosen[13:])
    parts = [drawn(each, seed=1) for each in (one, other)]
    both = batch_of(chosen)
    order = both.structure_index >= 13
    hidden = torch.empty(both.n_atoms, D, dtype=torch.float64)
    for kind in range(2):
        for late, batch, values in ((False, one, parts[0]), (True, other, parts[1])):
            hidden[(both.species == kind) & (order == late)] = values[batch.species == kind]
    together = mean_moments(both, hidden)
    added = mean_moments(one, parts[0]).joined(mean_moments(other, parts[1]))
    for value, same in zip(together, added, strict=True):
        torch.testing.assert_close(torch.as_tensor(value), torch.as_tensor(same))


def test_sees_what_no_atom_shows() -> None:
    """Atoms near the mean of the training are none of them unusual; together they are elsewhere."""
    random = torch.Generator().manual_seed(3)
    quiet = 0.3 * torch.randn(TRAIN.n_atoms, D, generator=random, dtype=torch.float64)
    shifted = quiet + 3.0 * TRAIN.species[:, None] + 0.8 * torch.linspace(0.5, 2, D)
    centre, whitening = NOVELTY.centre, NOVELTY.whitening
    moved = (shifted - centre[TRAIN.species]).unsqueeze(1) @ whitening[TRAIN.species]
    assert moved.square().sum((1, 2)).mean() < 1  # closer than training atoms
    assert NOVELTY(TRAIN, shifted).min() > 1.5 > NOVELTY(TRAIN, HIDDEN).mean()


def test_copies_of_a_cell_are_as_novel_as_one() -> None:
    cell = random_frame(ELEMENTS, 6, seed=7, apart=0.9, cell=6.0 * np.eye(3))
    double = replace(
        cell,
        numbers=np.tile(cell.numbers, 2),
        positions=np.concatenate([cell.positions, cell.positions + 6.0 * np.eye(3)[0]]),
        cell=np.diag([12.0, 6.0, 6.0]),
        forces=None,
    )
    one, two = batch_of([cell]), batch_of([double])
    hidden = drawn(one, seed=5)
    parts = torch.split(hidden, list(one.species_counts))
    copied = torch.cat([part.repeat(2, 1) for part in parts])
    torch.testing.assert_close(NOVELTY(two, copied), NOVELTY(one, hidden))


def test_structures_that_are_all_the_same_have_a_level() -> None:
    """One training structure is its own mean; what differs is still finite."""
    one = batch_of([random_frame(ELEMENTS, 12, seed=1, apart=0.9)])
    hidden = drawn(one, seed=2)
    found = fitted(seen_of(one, hidden))
    assert found(one, hidden).item() < 1e-3
    assert 1 < found(one, drawn(one, seed=3, shift=1.0)).item() < 1e6


@pytest.mark.parametrize("usual", [0.0, -1.0, math.nan, math.inf])
def test_levels_that_compare_nothing_are_refused(usual: float) -> None:
    with pytest.raises(ValueError, match="usual_novelty"):
        replace(NOVELTY, usual=usual)


def test_of_a_potential_and_of_its_file(
    make_potential: Callable[..., Potential], tmp_path: Path
) -> None:
    """Told by `predict`, the same after reading, and not by files that do not have it."""
    made = make_potential(elements=ELEMENTS)
    potential = replace(made, spec=MODEL.spec, posterior=bare(frames(30)))
    assert isinstance(potential.posterior, Novel)
    some = frames(3, start=700)
    found = potential.predict(some)
    assert found.novelty is not None
    assert found.novelty.shape == (3,)
    potential.save(tmp_path / "model.bayrace")
    again = type(potential).load(tmp_path / "model.bayrace").predict(some)
    assert again.novelty is not None
    torch.testing.assert_close(again.novelty, found.novelty, rtol=1e-9, atol=0)
    old = replace(potential, posterior=replace(potential.posterior, unlike=None))
    assert old.predict(some).novelty is None
