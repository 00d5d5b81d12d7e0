"""A run whose validation was best early goes back, cools down from there, and ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bayrace.data.dataset import Dataset
from bayrace.train.callbacks import Callbacks
from bayrace.train.loop import StepEvent, fit
from bayrace.train.schedule import WarmupCosine
from bayrace.train.state import load_best, load_last
from bayrace.train.task import Task

COSINE = WarmupCosine(warmup=2, floor=0.01)
EPOCHS = 60


def task(runner: ModuleType, folder: Path, *, scale: float, **changes: object) -> Task:
    """Weights grow from nothing to the training labels, past labels that are `scale` of them."""
    frames = [
        replace(frame, energy=scale * frame.energy, forces=scale * frame.forces)
        for frame in runner.frames(4, seed=7)
    ]
    valid = Dataset(
        frames, elements=runner.ELEMENTS, cutoff=runner.CUTOFF, references={1: 0.0, 8: 0.0}
    )
    slow = {"optimiser": replace(runner.settings().optimiser, lr=0.001), "max_epochs": EPOCHS}
    chosen = slow | {"schedule": COSINE, "cooldown": True, "monitor": "forces_rmse"} | changes
    settings = runner.settings(**chosen)
    squares = runner.squares()
    train = runner.dataset(8, seed=1)
    return Task(runner.model(), lambda _: squares, train, valid, settings, folder)


def test_it_goes_back_and_ends(runner: ModuleType, tmp_path: Path) -> None:
    result = fit(task(runner, tmp_path, scale=0.3, ema=None))
    assert result.reason == "cooldown"
    errors = [line["valid"]["forces_rmse"] for line in result.history]
    rates = [line["learning_rate"] for line in result.history]
    steps = [line["step"] for line in result.history]
    best = next(k for k, error in enumerate(errors) if error < errors[k + 1])
    turn = next(k for k in range(5, len(rates)) if rates[k + 1] > rates[k])  # goes back after it
    assert turn - best == pytest.approx(0.2 * EPOCHS, abs=1)
    assert errors[turn] > 1.15 * errors[best]
    assert max(errors[turn + 1 :]) < 1.02 * errors[best]
    cooling = steps[best] // 4
    assert cooling <= steps[-1] - steps[turn] < cooling + 2  # the rest of an epoch
    assert rates[turn + 1 :] == sorted(rates[turn + 1 :], reverse=True)
    assert rates[-1] < 0.1 * rates[best]
    last, _ = load_last(tmp_path)
    assert all(torch.equal(value, last[name]) for name, value in result.params.items())
    assert result.epoch == len(errors)


@pytest.mark.parametrize(
    ("scale", "changes"),
    [(1.0, {}), (0.3, {"cooldown": False}), (0.3, {"valid_every": 20}), (0.3, {"ivon": True})],
)
def test_it_goes_on_where_it_should(
    runner: ModuleType, tmp_path: Path, scale: float, changes: dict[str, object]
) -> None:
    """Improving, not asked for, hardly validated, or with variances in the optimiser's memory."""
    more = runner.ivon() if changes.pop("ivon", False) else {}
    made = task(runner, tmp_path, scale=scale, **more)
    result = fit(replace(made, settings=replace(made.settings, **changes)))
    assert result.reason == "epochs"
    assert len(result.history) == EPOCHS


def test_interrupted_anywhere_it_ends_the_same(runner: ModuleType, tmp_path: Path) -> None:
    whole = fit(task(runner, tmp_path / "whole", scale=0.3))
    assert whole.reason == "cooldown"
    final = whole.history[-1]["step"]
    for place in (3, final // 2, final - 5, final - 2, final - 1):
        seen = [0]

        def count(event: object, seen: list[int] = seen) -> None:
            seen[0] = event.step if isinstance(event, StepEvent) else seen[0]

        folder = tmp_path / str(place)
        stopping = Callbacks(observer=count, stop=lambda seen=seen, place=place: seen[0] == place)
        assert fit(task(runner, folder, scale=0.3), callbacks=stopping).reason == "interrupted"
        again = fit(task(runner, folder, scale=0.3), resume=True)
        assert (again.reason, again.epoch) == (whole.reason, whole.epoch)
        assert [line["valid"] for line in again.history] == [
            line["valid"] for line in whole.history
        ]
        best, _ = load_best(folder, device="cpu")
        assert all(torch.equal(value, best[name]) for name, value in whole.params.items())


def test_it_can_be_resumed_to_the_planned_end(runner: ModuleType, tmp_path: Path) -> None:
    made = task(runner, tmp_path, scale=0.3)
    assert fit(made).reason == "cooldown"
    assert fit(made, resume=True).reason == "cooldown"
    result = fit(replace(made, settings=replace(made.settings, cooldown=False)), resume=True)
    assert (result.reason, result.history[-1]["epoch"]) == ("epochs", EPOCHS)
