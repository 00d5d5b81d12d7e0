"""The file of a potential: tensors and one JSON document, with a SHA-256 over both.

The format is safetensors; nothing in the file is executed on loading. Version 1 held the weights of
members under their own names; since version 2 tensors are grouped, as in `posterior/…`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch

import bayrace
from bayrace.core.outputs import Params
from bayrace.train.checkpoint import digest

FORMAT_VERSION = 2
"""Layout of the file; raised whenever an older bayrace could misread a newer file."""

COPY = "fetch or copy the file again, or train anew"


class PotentialError(ValueError):
    """A potential file that cannot be used; the message says why and what to do."""


class Contents(NamedTuple):
    """What a file holds, checked to be whole and unaltered."""

    version: int
    document: dict[str, Any]
    tensors: Params


def encode(document: Mapping[str, Any], tensors: Params) -> bytes:
    """The bytes of a file; equal contents give equal bytes."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(document, sort_keys=True)
    header = {"format": FORMAT_VERSION, "sha256": _checksum(text, plain), "content": text}
    # One key: safetensors writes several in no fixed order.
    return safetensors.torch.save(plain, metadata={_KEY: json.dumps(header)})


def read(path: Path) -> Contents:
    """The checked contents of a file; PotentialError says what is wrong with it."""
    return decode(_bytes(path), path)


def decode(data: bytes, path: Path) -> Contents:
    """The checked contents of the bytes of a file; `path` is what messages call it."""
    header = _header(path, data)
    try:
        tensors = dict(sorted(safetensors.torch.load(data).items()))  # it has no fixed order
    except (safetensors.SafetensorError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise PotentialError(f"{path} is truncated or damaged ({error}); {COPY}") from error
    for name, value in tensors.items():
        if value.dtype not in _TYPES:
            raise PotentialError(f"{path}: {name} is {value.dtype}, which no potential has; {COPY}")
    text = header["content"]
    if not isinstance(text, str) or _checksum(text, tensors) != header["sha256"]:
        raise PotentialError(
            f"{path} is corrupted: its contents do not match their SHA-256; {COPY}"
        )
    for name, value in tensors.items():
        if value.is_floating_point() and bool(torch.isnan(value).any()):
            raise PotentialError(
                f"{path}: {name} holds what is not a number, so it can predict nothing; train anew"
            )
    return Contents(int(header["format"]), _document(path, text), tensors)


_TYPES = (torch.float32, torch.float64, torch.int64, torch.uint8)
_DEPTH = 32  # of nested lists and mappings; ours have a handful


def _document(path: Path, text: str) -> dict[str, Any]:
    """The JSON document, no deeper than any of ours."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PotentialError(f"{path}: its description is no JSON ({error}); {COPY}") from error
    if not isinstance(document, dict):
        raise PotentialError(
            f"{path}: its description is a {type(document).__name__}, not a mapping; {COPY}"
        )
    level: list[Any] = [document]
    for _ in range(_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [v for values in inner for v in values if isinstance(v, dict | list)]
    if level:
        raise PotentialError(f"{path}: its description is nested too deeply; {COPY}")
    return document


_KEY = "bayrace"


def _checksum(text: str, tensors: Params) -> str:
    return hashlib.sha256((text + digest(tensors)).encode()).hexdigest()


def _bytes(path: Path) -> bytes:
    if path.is_dir():
        raise PotentialError(f"{path} is a folder; name the .bayrace file in it")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise PotentialError(
            f"{path} does not exist; check the path, or make it with `bayrace train`"
        ) from None


def _header(path: Path, data: bytes) -> dict[str, Any]:
    """The bayrace entry of a safetensors header, of a version this code reads.

    Layout of safetensors: 8 bytes little-endian length, that many bytes of JSON, the tensors.
    """
    strange = f"{path} is not a bayrace potential"
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 + length:
        if data[8:9] not in (b"{", b""):
            raise PotentialError(f"{strange}; give a file written by `bayrace train`")
        raise PotentialError(f"{path} is truncated: it ends after {len(data)} bytes; {COPY}")
    try:
        entry = json.loads(data[8 : 8 + length])["__metadata__"][_KEY]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if f'"{_KEY}"'.encode() in data[8 : 8 + length]:
            raise PotentialError(f"{path} is corrupted in its header ({error}); {COPY}") from error
        raise PotentialError(f"{strange}; give a file written by `bayrace train`") from error
    try:
        header: dict[str, Any] = json.loads(entry)
        version, _, _ = header["format"], header["sha256"], header["content"]
        if type(version) is not int or version < 1:
            raise ValueError(f"format {str(version)[:40]!r} is no version")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PotentialError(f"{path} is corrupted in its header ({error}); {COPY}") from error
    if version > FORMAT_VERSION:
        raise PotentialError(
            f"{path} has format version {version}, this bayrace ({bayrace.__version__}) reads up "
            f"to {FORMAT_VERSION}; upgrade with `pip install -U bayrace`"
        )
    return header
