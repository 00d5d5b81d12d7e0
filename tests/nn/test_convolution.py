"""The seam: what the convolution means, and how its kernel is chosen."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from bayrace.core.graph import GraphBatch
from bayrace.nn import kernels
from bayrace.nn.convolution import Plan, convolve, convolve_plain, kernel_status, prepare
from bayrace.nn.coupling import clebsch_gordan
from bayrace.nn.harmonics import spherical_harmonics
from bayrace.nn.irreps import Irrep
from bayrace.nn.plan import parse_plan

PLAN = Plan((Irrep(0, 1), Irrep(1, -1)), 2, (Irrep(0, 1), Irrep(1, -1), Irrep(1, 1), Irrep(2, 1)))


@pytest.fixture
def pair_graph() -> GraphBatch:
    """Two atoms that see each other, and a third that sees no one."""
    return GraphBatch(
        species=torch.zeros(3, dtype=torch.int64),
        positions=torch.zeros(3, 3),
        cell=torch.zeros(1, 3, 3),
        volume=torch.ones(1),
        edges=torch.tensor([[0, 1], [1, 0]]),
        shifts=torch.zeros(2, 3),
        structure_index=torch.zeros(3, dtype=torch.int64),
        first_edge=torch.tensor([0, 1, 2, 2]),
        reverse=torch.tensor([1, 0]),
        pair=torch.tensor([0, 0]),
        pair_edges=torch.tensor([[0], [1]]),
        file_order=torch.arange(3),
        species_counts=(3,),
    )


def inputs(channels: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, PLAN.input_dim, channels), (1, 9), (1, len(PLAN.paths), channels))
    x, y, r = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return x, y, r


def test_definition(pair_graph: GraphBatch) -> None:
    x, y, r = inputs()
    out = convolve_plain(PLAN, x, y, r, pair_graph)
    for k, (source, degree, target) in enumerate(PLAN.paths):
        table = torch.tensor(clebsch_gordan(source.l, degree, target.l))
        start = PLAN.input_offset[source]
        angular = y[0, degree**2 : (degree + 1) ** 2]
        for receiver, sign in ((0, 1), (1, (-1) ** degree)):  # the reverse edge looks back
            sent = x[1 - receiver, start : start + source.dim]
            message = torch.einsum("abc,ad,b->cd", table, sent, sign * angular) * r[0, k]
            torch.testing.assert_close(out[receiver, list(PLAN.path_rows[k])], message)
    assert torch.equal(out[2], torch.zeros_like(out[2]))


def test_rotation(pair_graph: GraphBatch) -> None:
    x, y, r = inputs()
    generator = torch.Generator().manual_seed(1)
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))[0]
    rotation *= torch.linalg.det(rotation).sign()
    vectors = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    vectors /= vectors.norm(dim=1, keepdim=True)
    before, after = (spherical_harmonics(v, 2) for v in (vectors, vectors @ rotation.T))
    turns = [
        torch.linalg.lstsq(before[:, i**2 : (i + 1) ** 2], after[:, i**2 : (i + 1) ** 2])[0].T
        for i in range(3)
    ]

    def turn(value: torch.Tensor, degrees: list[int]) -> torch.Tensor:
        return torch.block_diag(*(turns[degree] for degree in degrees)) @ value

    turned = convolve_plain(
        PLAN, turn(x, [0, 1]), turn(y[..., None], [0, 1, 2])[..., 0], r, pair_graph
    )
    straight = PLAN.split(convolve_plain(PLAN, x, y, r, pair_graph))
    for irrep, value in PLAN.split(turned).items():
        torch.testing.assert_close(value, turn(straight[irrep], [irrep.l]))


def test_key_round_trip() -> None:
    assert parse_plan(PLAN.key) == PLAN


def test_plain_when_there_is_no_compiler(
    pair_graph: GraphBatch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    kernels._problem.cache_clear()
    kernels._warned.clear()
    x, y, r = inputs()
    with caplog.at_level(logging.WARNING):
        out = convolve(PLAN, x, y, r, pair_graph)
        convolve(PLAN, x, y, r, pair_graph)
        prepare(PLAN, 3, torch.float32)
    assert torch.equal(out, convolve_plain(PLAN, x, y, r, pair_graph))
    assert len(caplog.records) == 1
    assert "/nowhere/cc" in caplog.text
    assert kernel_status().startswith("plain")
    with pytest.raises(RuntimeError, match="install gcc"):
        convolve(PLAN, x, y, r, pair_graph, kernel="fused")
    kernels._problem.cache_clear()


def test_plain_when_the_build_fails(
    tmp_path: Path, pair_graph: GraphBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\ncase $* in *-dM*) echo '#define X 1';; *) exit 1;; esac\n")
    broken.chmod(0o700)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("BAYRACE_CACHE", str(tmp_path / "cache"))
    plan = Plan((Irrep(0, 1),), 1, (Irrep(1, -1),))
    kernels._problem.cache_clear()
    assert prepare(plan, 5, torch.float32) == "plain"
    assert list((tmp_path / "cache").iterdir()) == []
    kernels._problem.cache_clear()


def test_environment(pair_graph: GraphBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYRACE_KERNEL", "plain")
    assert prepare(PLAN, 2, torch.float64) == "plain"
    assert kernel_status() == "plain (BAYRACE_KERNEL=plain)"
    monkeypatch.setenv("BAYRACE_KERNEL", "quick")
    with pytest.raises(ValueError, match="quick"):
        convolve(PLAN, *inputs(), pair_graph)


def test_other_dtypes_are_plain() -> None:
    assert prepare(PLAN, 2, torch.bfloat16) == "plain"
