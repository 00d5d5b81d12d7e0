"""Potential: a trained model with its weights, references and provenance, THE file users share.

The file is safetensors: the weights as tensors, everything else as one JSON document in the
header, and a SHA-256 over both. Nothing in it is executed on loading.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

import bayrace
from bayrace.data.check import check_frame
from bayrace.data.frame import Frame, frame_from_atoms
from bayrace.model.noise import Lambdas
from bayrace.model.race import Race
from bayrace.model.spec import RaceSpec
from bayrace.predict import concatenate, predict_frames
from bayrace.train.checkpoint import digest, write_atomically
from bayrace.types import Params, Prediction

FORMAT_VERSION = 1
"""Layout of the file; raised whenever an older bayrace could misread a newer file."""


class PotentialError(ValueError):
    """A potential file that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, eq=False)
class Potential:
    """Everything needed to predict, and where it came from.

    Members are weights stacked along a leading dimension M, one entry per posterior sample.
    """

    spec: RaceSpec
    members: Params  # (M, ...) each
    posterior: str  # name of the algorithm that made the members: "point" or "ensemble"
    references: Mapping[int, float]  # eV of an isolated atom, by atomic number
    lambdas: Lambdas  # weights the losses used; predictions are corrected for them
    statistics: Mapping[str, Any]  # JSON: measured on training data
    config: Mapping[str, Any]  # JSON: the whole configuration of the run
    fingerprint: str  # SHA-256 of the training frames
    version: str = field(default_factory=lambda: bayrace.__version__)  # bayrace that trained it

    @cached_property
    def model(self) -> Race:
        """The energy function that the members parametrise."""
        return Race(self.spec)

    @cached_property
    def folded(self) -> Params:
        """Members with everything multiplied out that predictions share; made when first used."""
        with torch.no_grad():
            folded: Params = torch.func.vmap(self.model.fold)(dict(self.members))
        return folded

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers the model was trained on, ascending."""
        return self.model.elements

    @property
    def device(self) -> torch.device:
        """Where the members live, and so where predictions are computed."""
        return next(iter(self.members.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the network; energies are summed in float64 regardless."""
        return next(iter(self.members.values())).dtype

    def to(
        self, *, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> Potential:
        """The same potential on another device or in another precision."""
        where = None if device is None else resolve_device(device)
        real = None if dtype is None else resolve_dtype(dtype)
        moved = {name: v.to(device=where, dtype=real) for name, v in self.members.items()}
        result = replace(self, members=moved)
        vars(result)["model"] = self.model  # holds no weights, so it is built only once
        return result

    def predict(self, structures: Any, *, stress: bool = False) -> Prediction:
        """Predictive moments of an `ase.Atoms`, a Frame, or a sequence of them, in their order.

        Stress is nan for structures that are not periodic in all three directions.
        """
        batches = predict_frames(
            self.model,
            self.folded,
            _frames(structures),
            references=self.references,
            lambdas=self.lambdas,
            stress=stress,
        )
        return concatenate([prediction for _, prediction in batches])

    def save(self, path: str | Path) -> None:
        """Write one self-describing file; an older file at `path` is replaced as a whole."""
        path = Path(path)
        _check_members(self.members, self.model, path)
        write_atomically(path, encode(self))

    @staticmethod
    def load(
        path: str | Path,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype | None = None,
    ) -> Potential:
        """Read a file written by `save`, after checking that it is whole and unaltered.

        `device="auto"` takes a CUDA device if there is one, else the CPU; `dtype=None` keeps the
        precision of training.
        """
        path = Path(path)
        potential = _decode(*_read(path), path)
        _check_members(potential.members, potential.model, path)
        return potential.to(device=device, dtype=dtype)


def encode(potential: Potential) -> bytes:
    """The bytes of a potential's file."""
    tensors = {k: v.detach().cpu().contiguous() for k, v in potential.members.items()}
    content = {
        "spec": potential.spec.to_json(),
        "posterior": potential.posterior,
        "references": {str(z): float(e) for z, e in sorted(potential.references.items())},
        "lambdas": vars(potential.lambdas),
        "statistics": potential.statistics,
        "config": potential.config,
        "fingerprint": potential.fingerprint,
        "version": potential.version,
    }
    text = json.dumps(content, sort_keys=True)
    header = {"format": FORMAT_VERSION, "sha256": _checksum(text, tensors), "content": text}
    # One key: safetensors writes several in no fixed order, and equal potentials give equal files.
    return safetensors.torch.save(tensors, metadata={_KEY: json.dumps(header)})


def resolve_device(device: str | torch.device) -> torch.device:
    """A torch device; "auto" is CUDA if present, else CPU (MPS has no float64)."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise PotentialError(f"device={device!r} is unknown; use auto, cpu or cuda") from error


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A torch dtype from itself or its name: float32 or float64."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise PotentialError(f"dtype={name!r} is not supported; use one of {sorted(_DTYPES)}")
    return _DTYPES[name]


_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_KEY = "bayrace"
_COPY = "fetch or copy the file again, or train anew"


def _frames(structures: Any) -> Iterable[Frame]:
    single = isinstance(structures, Frame) or hasattr(structures, "get_positions")
    for index, item in enumerate([structures] if single else structures):
        frame = item if isinstance(item, Frame) else frame_from_atoms(item, keys=None, index=index)
        check_frame(frame)
        yield frame


def _checksum(text: str, tensors: Params) -> str:
    return hashlib.sha256((text + digest(tensors)).encode()).hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], Params]:
    """The checked JSON document and tensors of a file."""
    data = _bytes(path)
    header = _header(path, data)
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise PotentialError(f"{path} is truncated or damaged ({error}); {_COPY}") from error
    text = header["content"]
    if not isinstance(text, str) or _checksum(text, tensors) != header["sha256"]:
        raise PotentialError(
            f"{path} is corrupted: its contents do not match their SHA-256; {_COPY}"
        )
    content: dict[str, Any] = json.loads(text)
    return content, tensors


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
        raise PotentialError(f"{path} is truncated: it ends after {len(data)} bytes; {_COPY}")
    try:
        entry = json.loads(data[8 : 8 + length])["__metadata__"][_KEY]
    except (ValueError, KeyError, TypeError) as error:
        if f'"{_KEY}"'.encode() in data[8 : 8 + length]:
            raise PotentialError(f"{path} is corrupted in its header ({error}); {_COPY}") from error
        raise PotentialError(f"{strange}; give a file written by `bayrace train`") from error
    try:
        header: dict[str, Any] = json.loads(entry)
        version, _, _ = int(header["format"]), header["sha256"], header["content"]
    except (ValueError, KeyError, TypeError) as error:
        raise PotentialError(f"{path} is corrupted in its header ({error}); {_COPY}") from error
    if version > FORMAT_VERSION:
        raise PotentialError(
            f"{path} has format version {version}, this bayrace ({bayrace.__version__}) reads up "
            f"to {FORMAT_VERSION}; upgrade with `pip install -U bayrace`"
        )
    return header


def _decode(content: Mapping[str, Any], tensors: Params, path: Path) -> Potential:
    try:
        return Potential(
            spec=RaceSpec.from_json(content["spec"]),
            members=tensors,
            posterior=content["posterior"],
            references={int(z): float(e) for z, e in content["references"].items()},
            lambdas=Lambdas(**content["lambdas"]),
            statistics=content["statistics"],
            config=content["config"],
            fingerprint=content["fingerprint"],
            version=content["version"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PotentialError(
            f"{path} describes a model this bayrace ({bayrace.__version__}) cannot build "
            f"({type(error).__name__}: {error}); use the version that wrote it"
        ) from error


def _check_members(members: Params, model: Race, path: Path) -> None:
    """Refuse weights that are not those of the model, one leading dimension apart."""
    expected = {name: tuple(shape) for name, shape in model.shapes.items()}
    missing, extra = sorted(expected.keys() - members), sorted(members.keys() - expected)
    if missing or extra:
        raise PotentialError(
            f"{path}: weights do not fit the model: missing {missing}, unexpected {extra}; {_COPY}"
        )
    counts = {value.shape[0] if value.ndim else 0 for value in members.values()}
    for name, shape in expected.items():
        if tuple(members[name].shape[1:]) != shape or members[name].ndim == 0:
            raise PotentialError(
                f"{path}: weight {name} has shape {tuple(members[name].shape)}, the model needs "
                f"(members, {', '.join(map(str, shape))}); {_COPY}"
            )
    if len(counts) != 1 or 0 in counts:
        raise PotentialError(
            f"{path}: weights of {sorted(counts)} members; every tensor must hold the same number, "
            "at least one"
        )
