"""Compiled squared lengths against their definition, for every shape of the matrices."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from bayrace.nn.lengths import Lengths

REAL = torch.float64


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=REAL)


def by_definition(
    matrices: Tensor, centres: Tensor | None, x: Tensor, counts: tuple[int, ...]
) -> Tensor:
    """One vector after another."""
    kinds = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    found = []
    for kind, vector in zip(kinds.tolist(), x.double(), strict=True):
        moved = vector if centres is None else vector - centres[kind]
        image = moved @ matrices[kind]
        found.append(image @ image)
    return torch.stack(found)


@pytest.mark.parametrize("dtype", [torch.float32, REAL])
@pytest.mark.parametrize("shape", [(192, 192), (5, 5), (50, 7), (7, 50), (24, 24), (25, 25)])
def test_values(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrices, centres = normal(4, *shape, seed=0), normal(4, shape[0], seed=1)
    matrices = matrices * torch.logspace(-3, 3, shape[1], dtype=REAL)  # as different as whitening
    counts = (1, 0, 3, 17)
    x = normal(sum(counts), shape[0], seed=2).to(dtype)
    lengths = Lengths(matrices, centres)
    assert lengths.compiled(x)
    expected = by_definition(matrices, centres, x, counts)
    torch.testing.assert_close(lengths(x, counts), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(lengths._plain(x, counts), expected, rtol=1e-12, atol=0)


def test_one_kind_without_a_centre() -> None:
    matrix, x = normal(1, 30, 30, seed=3), normal(9, 60, seed=4)[:, ::2]  # not contiguous
    expected = by_definition(matrix, None, x, (9,))
    torch.testing.assert_close(Lengths(matrix)(x), expected, rtol=1e-12, atol=0)
    assert Lengths(matrix)(x[:0]).shape == (0,)


def test_it_travels() -> None:
    lengths = Lengths(normal(2, 30, 30, seed=5), normal(2, 30, seed=6))
    x = normal(5, 30, seed=7)
    here = lengths(x, (2, 3))
    there = pickle.loads(pickle.dumps(lengths))  # with what the first call has made
    assert torch.equal(there(x, (2, 3)), here)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, x = Lengths(normal(1, 30, 30, seed=8)), normal(5, 30, seed=9)
    here = lengths(x)
    monkeypatch.setenv("BAYRACE_KERNEL", "plain")
    assert not lengths.compiled(x)
    torch.testing.assert_close(lengths(x), here, rtol=1e-12, atol=0)
