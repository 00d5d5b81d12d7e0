"""A deep ensemble: draws are members, whole and in their order."""

from __future__ import annotations

import pytest
import torch

from bayrace.core.protocols import Posterior
from bayrace.posterior.ensemble import Ensemble

MEMBERS = [{"matrix": torch.full((2, 3), float(k)), "scalar": torch.tensor(-k)} for k in range(5)]


def test_all_members_are_drawn_in_their_order() -> None:
    posterior: Posterior = Ensemble.of(MEMBERS)
    drawn = posterior.draw(5, seed=0)
    assert drawn["matrix"].shape == (5, 2, 3)
    assert drawn["scalar"].tolist() == [0, -1, -2, -3, -4]


def test_fewer_are_chosen_by_the_seed_and_stay_whole() -> None:
    posterior = Ensemble.of(MEMBERS)
    chosen = {tuple(posterior.draw(2, seed=seed)["scalar"].tolist()) for seed in range(200)}
    assert len(chosen) == 10  # all pairs
    assert all(a > b for a, b in chosen)
    drawn = posterior.draw(3, seed=1)
    assert torch.equal(drawn["matrix"][:, 0, 0], -drawn["scalar"].float())


@pytest.mark.parametrize("samples", [0, 6])
def test_what_is_not_there_is_not_drawn(samples: int) -> None:
    with pytest.raises(ValueError, match=f"samples={samples}: this ensemble has 1 to 5"):
        Ensemble.of(MEMBERS).draw(samples, seed=0)
