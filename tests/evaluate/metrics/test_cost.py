"""Times in turns and memory of computations whose cost is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from bayrace.evaluate.metrics.cost import interleaved_times, peak_memory, relative_times


def test_turns_are_taken() -> None:
    order: list[str] = []
    calls = [lambda: order.append("a"), lambda: order.append("b")]
    times = interleaved_times(calls, rounds=3)
    assert times.shape == (3, 2)
    assert (times > 0).all()
    assert "".join(order) == "ab" * 4  # one round to warm up


def test_slower_calls_take_longer() -> None:
    now = [0.0]

    def taking(seconds: float) -> Callable[[], None]:
        return lambda: now.append(now.pop() + seconds)

    calls = [taking(0.25), taking(2.0)]
    found = relative_times(interleaved_times(calls, rounds=3, clock=lambda: now[0]))
    assert found.tolist() == [1.0, 8.0]


def test_disturbed_rounds_do_not_count() -> None:
    times = np.array([[1.0, 90.0], [10.0, 2.0], [70.0, 9.0]])
    assert relative_times(times).tolist() == [1.0, 2.0]


def test_peak_memory_is_that_of_living_tensors(capfd: pytest.CaptureFixture[str]) -> None:
    cpu = torch.device("cpu")

    def one_after_another() -> None:
        for _ in range(5):
            torch.zeros(1_000_000)

    def together() -> None:
        kept = [torch.zeros(1_000_000) for _ in range(5)]
        del kept

    assert peak_memory(one_after_another, device=cpu) == pytest.approx(4e6, rel=0.01)
    assert peak_memory(together, device=cpu) == pytest.approx(20e6, rel=0.01)
    assert peak_memory(lambda: None, device=cpu) == 0
    assert capfd.readouterr().err == ""
