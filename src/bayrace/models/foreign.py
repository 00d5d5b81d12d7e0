"""Networks of other packages: which one, of which version, with which weights.

The package stays the engine, and its weights stay in its wheel or in the user's file. A file of
ours names them with their SHA-256; other weights under the same name are refused.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from bayrace.core.protocols import Model
from bayrace.models.module import ModuleModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForeignSpec:
    """Weights of a network of another package, for some elements; each package derives its own."""

    name: ClassVar[str]
    package: ClassVar[str]  # as pip knows it
    in_wheel: ClassVar[tuple[str, ...]] = ()  # names of the weights that the package brings along

    weights: str  # a name of the package's, or the path of a file
    package_version: str
    sha256: str  # of the file of the weights
    elements: tuple[int, ...]  # atomic numbers, ascending; those of the data that it was fitted to
    cutoff: float  # Å

    @classmethod
    def adopt(cls, weights: str, *, elements: Sequence[int]) -> Self:
        """The specification of weights as they are here and now."""
        path = cls.locate(weights)
        known, cutoff = cls.describe(path)
        if missing := [z for z in elements if z not in known]:
            raise ValueError(f"{weights} does not know atomic numbers {missing}; use other weights")
        kept = weights if weights in cls.in_wheel else str(path.resolve())
        version = importlib.metadata.version(cls.package)
        return cls(kept, version, file_digest(path), tuple(sorted(elements)), cutoff)

    @classmethod
    def locate(cls, weights: str) -> Path:
        """The file of some weights; ValueError says where they could come from."""
        raise NotImplementedError

    @classmethod
    def describe(cls, path: Path) -> tuple[frozenset[int], float]:
        """Atomic numbers that the weights in a file know, and the cutoff in Å."""
        raise NotImplementedError

    def load(self, path: Path) -> ModuleModel:
        """The network with the weights in a file."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`, refusing missing and unknown names."""
        if wrong := {field.name for field in fields(cls)} ^ set(values):
            raise ValueError(f"model {cls.name}: unexpected or missing keys {sorted(wrong)}")
        return cls(**{**values, "elements": tuple(values["elements"])})

    def build(self) -> Model:
        """The network, after a check that its weights are those that were adopted."""
        path = self.locate(self.weights)
        found = file_digest(path)
        if found != self.sha256:
            raise ValueError(
                f"{path}: these are not the weights that were adopted (SHA-256 {found[:12]}…, not "
                f"{self.sha256[:12]}…); restore the file, or install {self.package}=="
                f"{self.package_version}, or adopt the new weights with `bayrace adopt`"
            )
        version = importlib.metadata.version(self.package)
        if version != self.package_version:
            _log.warning(
                "%s %s computes what %s was adopted with %s; check a known energy, or install that",
                self.package,
                version,
                self.weights,
                self.package_version,
            )
        return self.load(path)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def weights_file(weights: str, *, package: str, names: Sequence[str]) -> Path:
    """The path of weights that a user names by their file."""
    path = Path(weights).expanduser()
    if not path.is_file():
        known = f", or one of {', '.join(names)}" if names else ""
        raise ValueError(f"{weights}: no such file; give one that {package} wrote{known}")
    return path


def foreign_package(module: str, *, extra: str) -> Any:
    """A module of another package, or an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{module.split('.')[0]} cannot be imported ({error}); install it with "
            f"`pip install 'bayrace[{extra}]'`"
        ) from error
