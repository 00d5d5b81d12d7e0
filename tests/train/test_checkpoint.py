from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bayrace.train import checkpoint
from bayrace.train.checkpoint import CheckpointError

TENSORS = {
    "params/a": torch.randn(3, 4, dtype=torch.float64).mT,
    "params/b": torch.randn(5, dtype=torch.float32),
    "optimiser/count": torch.tensor(7),
}
CONTENT = {"elapsed": 0.1 + 0.2, "best": math.pi * 1e-300, "epoch": 3, "none": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / checkpoint.LAST
    checkpoint.save(target, TENSORS, CONTENT)
    return target


def test_everything_returns_exactly(path: Path) -> None:
    tensors, content = checkpoint.load(path)
    assert content == CONTENT
    assert list(tensors) == sorted(TENSORS)  # sums must not follow the order of a file
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)


def test_only_the_checkpoint_remains_in_the_folder(path: Path) -> None:
    checkpoint.save(path, TENSORS, {"epoch": 4})
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert checkpoint.load(path)[1] == {"epoch": 4}


def test_a_failed_save_keeps_the_old_file(path: Path) -> None:
    with pytest.raises(TypeError):
        checkpoint.save(path, TENSORS, {"not json": object()})
    assert checkpoint.load(path)[1] == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("length", [0, 5, 200, -1])
def test_truncated(path: Path, length: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:length])
    with pytest.raises(
        CheckpointError, match=r"last.ckpt: damaged or truncated \(\d+ bytes\).*restore"
    ):
        checkpoint.load(path)


def test_changed_bytes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="do not match their checksum"):
        checkpoint.load(path)


def test_garbage(path: Path) -> None:
    path.write_bytes(b"not a checkpoint at all" * 10)
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        checkpoint.load(path)


def test_another_safetensors_file(path: Path) -> None:
    safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="not a bayrace checkpoint"):
        checkpoint.load(path)


def test_another_version(path: Path) -> None:
    header = json.dumps({"version": 99, "sha256": "", "content": {}})
    safetensors.torch.save_file({"a": torch.zeros(2)}, path, {"bayrace_checkpoint": header})
    with pytest.raises(CheckpointError, match="layout 99, this bayrace reads 1"):
        checkpoint.load(path)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint; start the run without resume"):
        checkpoint.load(tmp_path / "last.ckpt")
