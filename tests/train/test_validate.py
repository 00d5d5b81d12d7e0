from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch

from bayrace.data.dataset import Dataset
from bayrace.train.validate import validate


def batches(runner: ModuleType, *sizes: int, **missing: object) -> list:
    frames = runner.frames(sum(sizes), seed=4)
    frames[1] = replace(frames[1], **missing)
    data = Dataset(frames, elements=(1, 8), cutoff=runner.CUTOFF, references={1: 0.0, 8: 0.0})
    places = iter(range(len(frames)))
    groups = [[next(places) for _ in range(size)] for size in sizes]
    return [data.batch(group, dtype=torch.float64, device="cpu") for group in groups]


def test_does_not_depend_on_the_batches(runner: ModuleType) -> None:
    params = runner.model().init(0, dtype=torch.float64)
    whole, parts = (
        validate(runner.model(), params, runner.squares(), batches(runner, *sizes), stress=False)
        for sizes in [(6,), (4, 2)]
    )
    assert whole == pytest.approx(parts, rel=1e-12)
    assert "stress_mae" not in whole


def test_missing_labels_do_not_count(runner: ModuleType) -> None:
    params = runner.model().init(0, dtype=torch.float64)
    with_all = batches(runner, 1, 1, 1)
    without = batches(runner, 3, energy=None)
    metrics = validate(runner.model(), params, runner.squares(), without, stress=False)
    others = validate(
        runner.model(), params, runner.squares(), [with_all[0], with_all[2]], stress=False
    )
    everything = validate(runner.model(), params, runner.squares(), with_all, stress=False)
    for name in ("energy_mae", "energy_rmse", "energy_rmse_per_atom", "loss_energy"):
        assert metrics[name] == pytest.approx(others[name], rel=1e-12)
    assert metrics["forces_mae"] == pytest.approx(everything["forces_mae"], rel=1e-12)


def test_quantities_without_labels_are_left_out(runner: ModuleType) -> None:
    params = runner.model().init(0, dtype=torch.float64)
    bare = batches(runner, 1, 1, energy=None, forces=None)[1:]
    metrics = validate(runner.model(), params, runner.squares(), bare, stress=True)
    assert {name for name in metrics if not name.startswith("loss")} == set()
