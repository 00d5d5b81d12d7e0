from __future__ import annotations

import math
import random

import pytest
import torch

from bayrace.train.schedule import (
    Constant,
    Plateau,
    ScheduleState,
    WarmupCosine,
    learning_rate,
    observe,
    progress,
)


def test_constant() -> None:
    rate = learning_rate(Constant(), ScheduleState(), peak=0.3, step=7, progress=0.9)
    assert rate == 0.3


def test_plateau_equals_torch() -> None:
    schedule = Plateau(factor=0.5, patience=2, threshold=0.01, minimum=1e-3)
    parameter = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.SGD([parameter], lr=0.1)
    peer = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, factor=0.5, patience=2, threshold=0.01, min_lr=1e-3
    )
    state, noise = ScheduleState(), random.Random(0)
    for number in range(100):
        value = 1 / (1 + min(number, 20)) + 0.02 * noise.random()
        peer.step(value)
        state = observe(schedule, state, value)
        rate = learning_rate(schedule, state, peak=0.1, step=number, progress=0.0)
        assert rate == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-12)
    assert rate == 1e-3


def test_plateau_counts_improvement_of_negative_values() -> None:
    schedule = Plateau(factor=0.5, patience=0, threshold=0.1, minimum=0.0)
    state = observe(schedule, ScheduleState(), -10.0)
    assert observe(schedule, state, -10.5).scale == 0.5  # less than a tenth better
    assert observe(schedule, state, -11.5).scale == 1.0


def test_cosine_rises_then_falls_to_its_floor() -> None:
    schedule = WarmupCosine(warmup=10, floor=0.1)

    def rate(step: int) -> float:
        done = progress(step=step, total_steps=1000, elapsed=0.0, max_time=None)
        return learning_rate(schedule, ScheduleState(), peak=2.0, step=step, progress=done)

    assert rate(0) == pytest.approx(0.2)
    assert rate(4) == pytest.approx(1.0, rel=1e-3)
    assert rate(500) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert rate(250) == pytest.approx(2.0 * (0.1 + 0.45 * (1 + math.cos(math.pi / 4))))
    assert rate(1000) == pytest.approx(0.2)


def test_cosine_reaches_its_floor_when_time_ends() -> None:
    done = progress(step=5, total_steps=1000, elapsed=60.0, max_time=60.0)
    assert done == 1.0
    schedule = WarmupCosine(warmup=0, floor=0.01)
    rate = learning_rate(schedule, ScheduleState(), peak=1.0, step=5, progress=done)
    assert rate == pytest.approx(0.01)
    assert progress(step=900, total_steps=1000, elapsed=6.0, max_time=60.0) == 0.9
