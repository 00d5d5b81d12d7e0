"""What the tests of compiled operators share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., Tensor]


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Sequence[Tensor], Sequence[Tensor], float], None]:
    """Tensors agree to a tolerance relative to the largest number of each."""

    def check(first: Sequence[Tensor], second: Sequence[Tensor], tolerance: float) -> None:
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert one.shape == other.shape
            scale = max(1.0, other.abs().max().item()) if other.numel() else 1.0
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)

    return check


@pytest.fixture(scope="session")
def derivatives() -> Callable[..., list[Tensor]]:
    """The output of a function and its derivatives, contracted with fixed random tensors."""

    def compute(function: Function, *values: Tensor, order: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(7)
        inputs = [value.clone().requires_grad_() for value in values]
        found = [function(*inputs)]
        current = found[:]
        for level in range(order):
            weights = [
                torch.randn(value.shape, generator=generator, dtype=value.dtype)
                for value in current
            ]
            if level == 0:  # gradients with respect to the cotangent are checked as well
                inputs.append(weights[0].requires_grad_())
                weights = inputs[-1:]
            pairs = zip(current, weights, strict=True)
            total = torch.stack([(value * weight).sum() for value, weight in pairs]).sum()
            current = list(
                torch.autograd.grad(total, inputs, create_graph=True, materialize_grads=True)
            )
            found += current
        return found

    return compute


@pytest.fixture(scope="session")
def threads() -> Any:
    """A context with another number of threads."""

    @contextmanager
    def use(count: int) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return use


@pytest.fixture(scope="session")
def watch() -> Callable[[], TorchDispatchMode]:
    """A context that counts calls of bayrace's operators, by name, in its `seen`."""

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: Counter[str] = Counter()

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.namespace == "bayrace":
                self.seen[func._opname] += 1
            return func(*args, **(kwargs or {}))

    return Watch
