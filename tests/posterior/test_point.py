"""A point posterior: every draw is the same set of weights."""

from __future__ import annotations

import pytest
import torch

from bayrace.core.protocols import Posterior
from bayrace.posterior.point import Point


def test_draws_are_copies_stacked_first() -> None:
    params = {"matrix": torch.randn(2, 3), "scalar": torch.tensor(4.0)}
    posterior: Posterior = Point(params)
    drawn = posterior.draw(5, seed=0)
    assert drawn["matrix"].shape == (5, 2, 3)
    assert drawn["scalar"].shape == (5,)
    assert all(torch.equal(member, params["matrix"]) for member in drawn["matrix"])


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="samples=0: draw at least 1"):
        Point({"weight": torch.ones(1)}).draw(0, seed=0)
