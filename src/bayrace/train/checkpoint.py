"""Checkpoints that survive a power cut: one safetensors file, replaced atomically, never pickled.

The header of the file holds one JSON document: whatever the caller wants kept, the version of the
layout, and a SHA-256 of the tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bayrace.core.files import whole_file

LAST = "last.ckpt"  # the newest state of a run, from which it resumes
BEST = "best.ckpt"  # the parameters of the best validation
VERSION = 1
_KEY = "bayrace_checkpoint"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or does not belong to this run."""


def save(path: Path, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> None:
    """Write `tensors` and the JSON-able `content` to `path`, all or nothing.

    The data reach the disk under a temporary name in the same folder before they take the place
    of an older file, so a crash leaves either the old file or the new one.
    """
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    header = {"version": VERSION, "sha256": digest(plain), "content": content}
    data = safetensors.torch.save(plain, metadata={_KEY: json.dumps(header)})
    write_atomically(path, data)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (on the CPU, own memory) and content of a checkpoint; CheckpointError if damaged."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint; start the run without resume")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # A clone is aligned as fresh tensors are; matrix products may round by alignment.
            tensors = {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
    except (safetensors.SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: damaged or truncated ({path.stat().st_size} bytes): {error}; {_REMEDY}"
        ) from error
    return tensors, _content(path, metadata, tensors)


def flatten(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of several groups in one dictionary, as group/name."""
    return {f"{group}/{name}": v for group, values in groups.items() for name, v in values.items()}


def group(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of one group of a flattened dictionary, under their own names."""
    mark = f"{name}/"
    return {k.removeprefix(mark): v for k, v in tensors.items() if k.startswith(mark)}


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file at `path` by `data`; readers and crashes see the old or the new whole."""
    with whole_file(path) as temporary:
        temporary.write_bytes(data)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    result = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        result.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        if value.numel():  # an empty array of numpy's has stride 0, whose bytes torch refuses
            result.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return result.hexdigest()


_REMEDY = "restore it from a copy, or start the run again without resume in a new folder"


def _content(
    path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    if _KEY not in metadata:
        raise CheckpointError(
            f"{path}: a safetensors file, but not a bayrace checkpoint; name the run's {LAST}"
        )
    try:
        header = json.loads(metadata[_KEY])
        version, expected, content = header["version"], header["sha256"], header["content"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: its header cannot be read ({error}); {_REMEDY}") from error
    if version != VERSION:
        raise CheckpointError(
            f"{path}: checkpoint layout {version}, this bayrace reads {VERSION}; "
            "continue the run with the bayrace version that wrote it"
        )
    if digest(tensors) != expected:
        raise CheckpointError(f"{path}: the tensors do not match their checksum; {_REMEDY}")
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: its header holds no settings; {_REMEDY}")
    return content
